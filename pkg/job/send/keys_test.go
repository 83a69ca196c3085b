package send

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// encryptedWorld returns a world with src/a and src/a/b in one encryption root, and copies that are
// separate encryption roots.
func encryptedWorld(t *testing.T) *jobtest.World {
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
	for _, d := range []string{"a", "a/b"} {
		w.Memory.Copy("src/"+d, "dst/"+d, "x")
		for dataset, root := range map[string]string{"src/" + d: "src/a", "dst/" + d: "dst/" + d} {
			for name, value := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": root, "keyformat": "passphrase", "keylocation": "prompt",
				"keystatus": "unavailable", "pbkdf2salt": "1", "pbkdf2iters": "350000", zfs.FlagsProperty: "w"} {
				w.Memory.Set(dataset, name, value)
			}
		}
	}
	return w
}

// TestCopiesInheritKeys expects that sends and jobs make copies inherit their key. Copies
// that cannot do so remain encryption roots.
func TestCopiesInheritKeys(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(*jobtest.World) error{
		"send": func(w *jobtest.World) error {
			_, err := Run(t.Context(), sendRequest(nil), hosts.New(w), Quiet{})
			return err
		},
		"batch": func(w *jobtest.World) error {
			_, err := RunBatch(t.Context(), batch(t, w, nil), hosts.New(w), Quiet{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := encryptedWorld(t)
			w.Before = jobtest.FailOn("change-key dst/a/b", fault.Refusef("", "not for this key"))
			require.NoError(t, move(w))
			require.Equal(t, "dst/a/b", w.Memory.Get("dst/a/b", "encryptionroot"))
			w.Before = nil
			require.NoError(t, move(w))
			require.Equal(t, "dst/a", w.Memory.Get("dst/a/b", "encryptionroot"))
			require.Equal(t, "dst/a", w.Memory.Get("dst/a", "encryptionroot"))
		})
	}
}

// TestDependentsBecomeRootsBeforeKeyChange expects that before a stream changes a copy's key, its
// dependents become encryption roots, even those without a stream. If that fails, no stream starts.
func TestDependentsBecomeRootsBeforeKeyChange(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(*jobtest.World) error{
		"send alone": func(w *jobtest.World) error {
			_, err := Run(t.Context(), sendRequest(func(s *Request) { s.Plan.Recursive = false }), hosts.New(w), Quiet{})
			return err
		},
		"batch of known copies": func(w *jobtest.World) error {
			b := batch(t, w, nil)
			b.Survey.Datasets, b.Copies = b.Survey.Datasets[:1], []string{"dst/a"}
			res, err := RunBatch(t.Context(), b, hosts.New(w), Quiet{})
			if err == nil && len(res.Datasets) > 0 {
				err = res.Datasets[0].Err
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := encryptedWorld(t)
			w.Memory.Set("dst/a/b", "encryptionroot", "dst/a")
			require.NoError(t, w.Memory.Snapshot(t.Context(), []string{"src/a@y"}))
			w.Memory.Set("src/a", "pbkdf2salt", "2")
			w.Changes, w.Before = nil, jobtest.FailOn("change-key dst/a/b", fault.Refusef("", "not for this key"))
			require.ErrorContains(t, move(w), "dst/a/b inherits its key from dst/a, which changes: not for this key")
			require.Empty(t, w.Changes)
			require.Equal(t, "dst/a", w.Memory.Get("dst/a/b", "encryptionroot"))
			w.Before = nil
			require.NoError(t, move(w))
			require.Contains(t, w.Changes, "receive dst/a@y")
			require.Equal(t, "dst/a/b", w.Memory.Get("dst/a/b", "encryptionroot"))
		})
	}
}

// TestWhyNotJoined expects that if the assertion is refused, the message names the command that
// loads the keys.
func TestWhyNotJoined(t *testing.T) {
	t.Parallel()
	forbidden := fault.Refusef("ask the administrator of that host", "%w: not believed", hosts.ErrForbidden)
	require.Contains(t, whyNotJoined(remedy.Host{}, forbidden, "vault/k", true), "than passphrases; to open all of them, run: zfs load-key -r vault/k")
	require.Contains(t, whyNotJoined(remedy.Host{}, forbidden, "vault/k", false), "(ask the administrator of that host)")
}
