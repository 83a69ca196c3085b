package runner

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/zfs"
)

// TestPromoteDescendantWithSystemMountpoint expects that a recorded mountpoint of a descendant that
// is refused does not prevent a promotion for which the user chooses the mountpoint.
func TestPromoteDescendantWithSystemMountpoint(t *testing.T) {
	t.Parallel()
	for mountpoint, want := range map[string][]string{
		"":     nil, // refused
		"none": {"none", "none", "noauto"},
		"/new": {"/new", "", "noauto"}, // mountpoint=none,
	} {
		p := newRolePair(t)
		p.Set("src/a/c", "mountpoint", "/home")
		require.NoError(t, p.runJob(t, "home"))
		p.Set("dst/copy/a/c", "mountpoint", "none")
		f, err := p.doPromote(t, failover.Options{Mountpoint: mountpoint, SourceAlive: true})
		if want == nil {
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.ErrorContains(t, err, "/home is outside of the directories that this host permits")
			continue
		}
		require.NoError(t, err, mountpoint)
		require.Equal(t, want[0], p.Get("dst/copy/a", "mountpoint"))
		require.NotEqual(t, "/home", p.Get("dst/copy/a/c", "mountpoint"))
		require.Equal(t, want[2], p.Get("dst/copy/a/c", "canmount"))
		if mountpoint == "/new" {
			require.Contains(t, strings.Join(f.Notes, "\n"), "the recorded mountpoint is not used")
		}
	}
}

// TestHostileMountpointOfUnmountedDataset expects that a record is checked even if the dataset is not
// mounted now.
func TestHostileMountpointOfUnmountedDataset(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.Set("dst/copy/a/c", zfs.OriginProperty, `{"set":{"mountpoint":"/etc","canmount":"noauto"}}`)
	state := p.state()
	_, err := p.doPromote(t, failover.Options{SourceAlive: true})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "/etc is outside of the directories that this host permits")
	require.Equal(t, state, p.state())
}

// TestPermittedMountpoints expects that a recorded mountpoint is used below the directories of mount_below, where the
// copy's host mounted the dataset before, and below a few directories for data.
func TestPermittedMountpoints(t *testing.T) {
	t.Parallel()
	for at, tt := range map[string]struct {
		below []string
		own   string // mountpoint of the copy on its host
		want  string
	}{
		"/srv/home":         {want: ""},
		"/src/a":            {want: ""},
		"/dst/a":            {want: ""},
		"/data":             {want: ""},
		"/var/lib/db":       {below: []string{"/var/lib/db"}},
		"/var/lib/db/16":    {below: []string{"/opt", "/var/lib/db"}},
		"/home/alice":       {own: "/home/alice"},
		"/home/alice/mail":  {own: "/home/alice"},
		"/var/lib/dbx":      {below: []string{"/var/lib/db"}, want: "outside of the directories"},
		"/home/alice2":      {own: "/home/alice", want: "outside of the directories"},
		"/home/bob/../carl": {below: []string{"/home"}, want: "not a clean path"},
	} {
		p := newRolePair(t)
		if tt.below != nil {
			text := strings.Replace(pairText, "recursive = true", fmt.Sprintf("recursive = true\nmount_below = [\"%s\"]", strings.Join(tt.below, `", "`)), 1)
			require.NoError(t, os.WriteFile(p.file, []byte(text), 0o640))
		}
		require.NoError(t, p.runJob(t, "home"))
		p.Set("dst/copy/a", zfs.OriginProperty, `{"set":{"mountpoint":"`+at+`"}}`)
		p.Set("dst/copy/a/c", zfs.OriginProperty, `{"set":{"canmount":"off"}}`)
		if tt.own != "" {
			p.Set("dst/copy/a", "mountpoint", tt.own)
		}
		p.away = "src"
		f, err := p.doPromote(t, failover.Options{})
		if tt.want != "" {
			require.ErrorContains(t, err, tt.want, at)
			require.Contains(t, fault.HintOf(err), "--mountpoint PATH")
			continue
		}
		require.NoError(t, err, at)
		require.Equal(t, []string{at, "on", "yes"}, []string{p.Get("dst/copy/a", "mountpoint"), p.Get("dst/copy/a", "canmount"), p.Get("dst/copy/a", "mounted")}, f)
	}
}

// TestPromoteLocked expects that a copy whose key is not loaded is not mounted at boot either, and that the same
// command mounts it after its key was loaded.
func TestPromoteLocked(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	encryption := map[string]string{"encryption": "aes-256-gcm", "encryptionroot": "dst/copy/a", "keyformat": "raw", "keystatus": "unavailable"}
	for _, name := range []string{"dst/copy/a", "dst/copy/a/c"} {
		for property, value := range encryption {
			p.Set(name, property, value)
		}
	}
	p.Set("dst/copy/a/c", "canmount", "on") // by another tool
	p.away = "src"
	f, err := p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.Contains(t, f.Next, "zfs load-key dst/copy/a")
	require.Contains(t, f.Next, "then mount it: zxfer replicate promote home near")
	require.NotContains(t, strings.Join(f.Next, "\n"), "zfs mount")
	for _, name := range []string{"dst/copy/a", "dst/copy/a/c"} {
		require.Equal(t, []string{"noauto", ""}, []string{p.Get(name, "canmount"), p.Get(name, "mounted")}, name)
	}
	f, err = p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.Contains(t, f.Next, "zfs load-key dst/copy/a", "again")
	for _, name := range []string{"dst/copy/a", "dst/copy/a/c"} {
		p.Set(name, "keystatus", "available")
	}
	f, err = p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.NotContains(t, strings.Join(f.Next, "\n"), "mount it")
	for _, name := range []string{"dst/copy/a", "dst/copy/a/c"} {
		require.Equal(t, []string{"on", "yes"}, []string{p.Get(name, "canmount"), p.Get(name, "mounted")}, name)
		require.Empty(t, p.Get(name, zfs.OriginProperty))
	}
}
