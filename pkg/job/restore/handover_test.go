package restore

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// restoreTree returns a request to restore src/a and its descendants to dst/back.
func restoreTree() Request {
	req := Request{Mount: true, Send: sendRequest(nil)}
	req.Send.Target, req.Send.Plan.Target = endpoint.Endpoint{Name: "dst/back"}, "dst/back"
	return req
}

// TestRestoreOfCloneContinues expects that the next restore hands over datasets of an interrupted
// one, even if its plan needs the whole history of the target, as for a clone.
func TestRestoreOfCloneContinues(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Clone("src/a@x", "src/a/c")
	require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a/c@z"}))
	w.Before = jobtest.FailOn("receive dst/back/c", errors.New("broken"))
	_, err := Run(t.Context(), restoreTree(), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "broken")
	require.Equal(t, "on", w.Memory.Get("dst/back", zfs.RestoreProperty))
	w.Before = nil
	_, err = Run(t.Context(), restoreTree(), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	for _, name := range []string{"dst/back", "dst/back/c"} {
		require.Empty(t, w.Memory.Get(name, "readonly"), name)
		require.Empty(t, w.Memory.Get(name, zfs.RestoreProperty), name)
	}
}

// TestRestoreMountsAgain expects that a restore mounts again what it unmounted, also after a failure, and lists what it
// cannot mount and the datasets that an earlier restore unmounted.
func TestRestoreMountsAgain(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/back", "x")
	w.Memory.Create("dst/back/below", nil)
	mounted := func(states ...string) {
		t.Helper()
		require.Equal(t, states, []string{w.Memory.Get("dst/back", "mounted"), w.Memory.Get("dst/back/below", "mounted")})
	}
	for _, name := range []string{"dst/back", "dst/back/below"} {
		for property, value := range map[string]string{"mounted": "yes", "canmount": "on", "mountpoint": "/" + name} {
			w.Memory.Set(name, property, value)
		}
	}
	req := restoreTree()
	req.Mount, req.Send.Plan.Recursive, req.Send.Plan.Rollback = false, false, true
	w.Before = jobtest.FailOn("receive dst/back", errors.New("broken"))
	r, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "broken")
	require.Empty(t, r.Next)
	mounted("yes", "yes")

	w.Before = func(op string) error {
		if op == "receive dst/back" || op == zfs.OpMount+" dst/back" {
			return errors.New("broken")
		}
		return nil
	}
	r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "broken")
	require.Equal(t, []string{"zxfer restore --mount -R dst/back"}, r.Next)
	w.Memory.Set("dst/back/below", "mounted", "no") // as after a kill
	w.Before = jobtest.FailOn("receive dst/back", errors.New("broken"))
	r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "broken")
	require.Equal(t, []string{"zxfer restore --mount -R dst/back"}, r.Next)

	w.Before = nil
	for _, name := range []string{"dst/back", "dst/back/below"} {
		w.Memory.Set(name, "mounted", "yes")
	}
	r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Empty(t, r.Next)
	mounted("yes", "yes")
}

// TestRestoreOfTreeWithNewerData expects that a dataset below the restored one that has newer data is
// kept, unless the whole tree is rolled back.
func TestRestoreOfTreeWithNewerData(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	w.Memory.Copy("src/a", "dst/back", "x")
	w.Memory.Copy("src/a/b", "dst/back/b", "x")
	w.Memory.Write("dst/back/b", []byte("newer"))
	req := restoreTree()
	r, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.UpToDate, r.Outcome)
	require.Contains(t, strings.Join(r.Plan.Notes, "\n"), "local:dst/back/b has @x, and newer data: 5 bytes written since; zxfer keeps it; to roll it back, add {{rollback}} (preview with")
	req.Send.Plan.Rollback = true
	r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	require.Equal(t, "0", w.Memory.Get("dst/back/b", "written"))
}

// TestRestoreWithKeysNotJoined expects that if keys cannot be joined, the report contains the
// commands and everything else is done.
func TestRestoreWithKeysNotJoined(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	for _, name := range []string{"src/a", "src/a/b"} {
		for property, value := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": name, "keyformat": "passphrase", "pbkdf2salt": "1", "pbkdf2iters": "350000"} {
			w.Memory.Set(name, property, value)
		}
	}
	req, failed := restoreTree(), false
	w.Before = func(op string) error {
		switch {
		case strings.HasPrefix(op, zfs.OpChangeKey+" "):
			failed = true
			return &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpChangeKey, Subject: "dst/back/b"}
		case op == zfs.OpList+" dst/back": // streams bring these properties, but zfsmem does not
			w.Memory.Edit(func(all map[string]*zfs.Dataset) {
				for _, name := range []string{"a", "a/b"} {
					to := all[strings.Replace("dst/"+name, "/a", "/back", 1)]
					if to == nil {
						continue
					}
					for _, p := range []string{"encryption", "encryptionroot", "keyformat", "pbkdf2salt", "pbkdf2iters"} {
						to.Properties[p] = all["src/"+name].Properties[p]
					}
					to.Properties["encryptionroot"] = zfs.Property{Value: to.Name, Source: "-"}
				}
			})
		}
		return nil
	}
	r, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.True(t, failed)
	require.Contains(t, strings.Join(r.Next, "\n"), "zfs change-key -i dst/back/b")
	require.Empty(t, w.Memory.Get("dst/back/b", zfs.RestoreProperty))
}
