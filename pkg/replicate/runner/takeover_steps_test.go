package runner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/zfs"
)

// lines returns the steps of a fail over, one per line.
func lines(f *failover.Result) string {
	var b strings.Builder
	for _, s := range f.Steps {
		b.WriteString(s.Line() + "\n")
	}
	return b.String()
}

// TestPromoteUnmountsEachCopyElsewhere expects that each copy that is mounted elsewhere is unmounted first, because
// zfs set mountpoint would mount it again by name.
func TestPromoteUnmountsEachCopyElsewhere(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("src/a/d", nil)
	p.Set("src/a/d", "mountpoint", "/data/d")
	p.Set("src/a/c", "mountpoint", "/data/c")
	require.NoError(t, p.runJob(t, "home"))
	for _, n := range []string{"dst/copy/a/c", "dst/copy/a/d"} {
		p.Set(n, "mounted", "yes")
		p.Set(n, "mountpoint", "/"+n)
	}
	for _, n := range []string{"src/a", "src/a/c", "src/a/d"} {
		p.Set(n, "canmount", "off")
	}
	p.away = "src"
	f, err := p.doPromote(t, failover.Options{DryRun: true})
	require.NoError(t, err)
	require.Contains(t, lines(f), "zfs unmount dst/copy/a/c with its descendants")
	require.Contains(t, lines(f), "zfs unmount dst/copy/a/d with its descendants")
}

// TestPromoteMountsNoUnjudgedDataset expects that a dataset below the copy that is no copy is not mounted outside of it.
func TestPromoteMountsNoUnjudgedDataset(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.Create("dst/copy/a/x", nil)
	p.Set("dst/copy/a/x", "canmount", "on")
	p.Set("dst/copy/a/x", "mounted", "no")
	p.Set("dst/copy/a/x", "mountpoint", "/etc/cron.d")
	for _, n := range []string{"src/a", "src/a/c"} {
		p.Set(n, "canmount", "off")
	}
	p.away = "src"
	f, err := p.doPromote(t, failover.Options{DryRun: true})
	require.NoError(t, err)
	require.NotContains(t, lines(f), "mount dst/copy/a/x")
	require.Contains(t, strings.Join(f.Next, "\n"), "zxfer restore --mount dst/copy/a/x")
}

// TestMountpointHintOpensLittle expects a hint with mount_below for the mountpoint alone, and no such hint for a directory of
// the operating system.
func TestMountpointHintOpensLittle(t *testing.T) {
	t.Parallel()
	for at, hint := range map[string]string{"/home": "", "/etc/cron.d": "", "/big/files": `mount_below = ["/big/files"]`} {
		p := newRolePair(t)
		require.NoError(t, p.runJob(t, "home"))
		p.Set("dst/copy/a", zfs.OriginProperty, `{"set":{"mountpoint":"`+at+`"}}`)
		p.away = "src"
		_, err := p.doPromote(t, failover.Options{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), at)
		if hint == "" {
			require.NotContains(t, fault.HintOf(err), "mount_below", at)
			continue
		}
		require.Contains(t, fault.HintOf(err), hint)
	}
}

// TestPromoteWithoutJobFileNamesDataset expects that the command that mounts locked copies later names the dataset,
// because no file names a target.
func TestPromoteWithoutJobFileNamesDataset(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	for _, name := range []string{"dst/copy/a", "dst/copy/a/c"} {
		for k, v := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": "dst/copy/a", "keyformat": "raw", "keystatus": "unavailable"} {
			p.Set(name, k, v)
		}
	}
	p.away = "src"
	r := p.runner(t)
	j, err := failover.JobOfCopy(t.Context(), r.Env, "home", "dst/copy/a")
	require.NoError(t, err)
	f, err := p.Promote(t, j, failover.Options{Target: j.Targets[0].Name, SourceUnknown: true, Mountpoint: "/srv/h"})
	require.NoError(t, err)
	require.Contains(t, strings.Join(f.Next, "\n"), "zxfer replicate promote --mountpoint /srv/h home dst/copy/a")
}
