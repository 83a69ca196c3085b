package restore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/hosts/hoststest"
	"zxfer/pkg/job/jobtest"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// mountRequest returns a request for restore --mount dst/back.
func mountRequest(recursive bool) Request {
	req := restoreTree()
	req.Send.Source, req.Send.Target = endpoint.Endpoint{}, endpoint.Endpoint{Name: "dst/back"}
	req.Send.Plan.Recursive = recursive
	return req
}

// TestRestoreMountOnly expects that restore --mount without a copy mounts what a restore left unmounted, and what ZFS would
// mount, but nothing else, and that it fails if a filesystem remains unmounted.
func TestRestoreMountOnly(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "dst": nil, "dst/back": nil, "dst/back/on": nil, "dst/back/noauto": nil, "dst/back/off": nil, "dst/backup": nil})
	for name, properties := range map[string]map[string]string{
		"dst/back": {"canmount": "noauto", zfs.CanMountProperty: "on"}, "dst/back/on": {"canmount": "on"}, "dst/back/noauto": {"canmount": "noauto"},
		"dst/back/off": {"canmount": "off"}, "dst/backup": {"canmount": "on"},
	} {
		w.Memory.Set(name, "mountpoint", "/"+name)
		for property, value := range properties {
			w.Memory.Set(name, property, value)
		}
	}
	r, err := RunMount(t.Context(), mountRequest(true), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, r.Outcome)
	require.Equal(t, []string{"dst/back", "dst/back/on"}, r.Mounted)
	require.Equal(t, "on", w.Memory.Get("dst/back", "canmount"))
	require.Empty(t, w.Memory.Get("dst/back", zfs.CanMountProperty))
	require.Empty(t, w.Memory.Get("dst/backup", "mounted"))
	r, err = RunMount(t.Context(), mountRequest(true), hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, outcome.UpToDate, r.Outcome)

	w.Memory.Set("dst/back", "mounted", "no")
	w.Memory.Set("dst/back", zfs.RestoreProperty, "on")
	_, err = RunMount(t.Context(), mountRequest(false), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "the restore of dst/back is not complete")
	w.Memory.Edit(func(all map[string]*zfs.Dataset) { delete(all["dst/back"].Properties, zfs.RestoreProperty) })

	w.Memory.Set("dst/backup", "mountpoint", "/dst/back")
	_, err = RunMount(t.Context(), mountRequest(false), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "dst/back cannot mount at /dst/back: it is the mountpoint of dst/backup, which is not mounted now")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	w.Memory.Set("dst/backup", "mountpoint", "none")

	for property, value := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": "dst/back", "keystatus": "unavailable", "keyformat": "passphrase"} {
		w.Memory.Set("dst/back", property, value)
	}
	_, err = RunMount(t.Context(), mountRequest(false), hosts.New(w), send.Quiet{})
	require.ErrorContains(t, err, "not mounted: dst/back")
	require.Contains(t, fault.HintOf(err), "zfs load-key dst/back")
	w.Memory.Set("dst/back", "canmount", "off")
	_, err = RunMount(t.Context(), mountRequest(false), hosts.New(w), send.Quiet{})
	require.Contains(t, fault.HintOf(err), "zfs set canmount=noauto mountpoint=/PATH dst/back")
}

// TestRestoreWithoutMountpoint expects the command that gives a restored tree a mountpoint, once for all that inherit it,
// and the command that mounts it then.
func TestRestoreWithoutMountpoint(t *testing.T) {
	t.Parallel()
	for _, mountpoint := range []string{"none", "legacy"} {
		w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/b": {"x"}, "dst": nil})
		w.Memory.Set("dst", "mountpoint", mountpoint)
		w.Before = func(op string) error {
			if op == zfs.OpList+" dst/back" { // zfsmem inherits no values
				w.Memory.Edit(func(all map[string]*zfs.Dataset) {
					for _, name := range []string{"dst/back", "dst/back/b"} {
						if d := all[name]; d != nil {
							d.Properties["mountpoint"] = zfs.Property{Value: mountpoint, Source: "inherited from dst"}
						}
					}
				})
			}
			return nil
		}
		r, err := Run(t.Context(), restoreTree(), hosts.New(w), send.Quiet{})
		require.NoError(t, err)
		require.Equal(t, []string{"zfs set mountpoint=/PATH dst/back  # it has mountpoint=" + mountpoint, "zxfer restore --mount -R dst/back"}, r.Next)
	}
}

// TestRestoreAtMountpointOfOther expects that a restore does not mount where another dataset mounts that is not mounted
// now, for example because its key is not loaded.
func TestRestoreAtMountpointOfOther(t *testing.T) {
	t.Parallel()
	w := jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil, "dst/locked": nil})
	w.Memory.Set("dst", "mountpoint", "/dst")
	w.Memory.Set("dst/locked", "mountpoint", "/dst/back")
	w.Memory.Set("dst/locked", "canmount", "on")
	req := restoreTree()
	r, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Equal(t, plan.Mounted, r.Plan.Conflicts[0].ID)
	require.Contains(t, r.Plan.Conflicts[0].Summary, "dst/back mounts at /dst/back, the mountpoint of dst/locked, which is not mounted now")
	require.Empty(t, versionsOf(w, "dst/back"))
	req.Mount = false
	r, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Contains(t, r.Plan.Notes, "dst/back mounts at /dst/back, the mountpoint of dst/locked, which is not mounted now")
	w.Before = jobtest.FailOn(zfs.OpList, errors.New("broken"))
	_, err = Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.Error(t, err)
}

// mountingWorld records the requests to mount.
type mountingWorld struct {
	*jobtest.World
	mounts []zfs.MountRequest
}

func (w *mountingWorld) Open(context.Context, hosts.Address) (hosts.Host, error) { return w, nil }

func (w *mountingWorld) Run(ctx context.Context, r *hosts.Request) error {
	return hoststest.Run(ctx, w.World, r, hoststest.With(hosts.OpMount, func(_ context.Context, m zfs.MountRequest) (string, error) {
		w.mounts = append(w.mounts, m)
		return "", nil
	}))
}

// TestRestoreMountsAtJudgedPath expects that a restore mounts only at the path that it judged, also if the mountpoint
// changes during the restore.
func TestRestoreMountsAtJudgedPath(t *testing.T) {
	t.Parallel()
	w := &mountingWorld{World: jobtest.NewWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "dst": nil})}
	w.Memory.Set("dst", "mountpoint", "/dst")
	req := restoreTree()
	req.Send.Plan.Recursive = false
	w.Before = func(op string) error {
		if strings.HasPrefix(op, zfs.OpList) && w.Memory.Get("dst/back", zfs.RestoreProperty) == "on" { // it was received
			w.Memory.Set("dst/back", "mountpoint", "/etc")
		}
		return nil
	}
	_, err := Run(t.Context(), req, hosts.New(w), send.Quiet{})
	require.NoError(t, err)
	require.Equal(t, []zfs.MountRequest{{Dataset: "dst/back", At: "/dst/back", Boot: true}}, w.mounts)
}
