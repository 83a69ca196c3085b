package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZFSUninstall expects uninstall to remove the holds and bookmarks of jobs only with
// --holds, and to keep all others.
func TestZFSUninstall(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@a")
	mustZxfer(t, "send", src, "beta:"+dst)
	zfsCmd(t, "hold", "zxfer:job:vault", src+"@a", dst+"@a")
	zfsCmd(t, "hold", "zxfer:mine", dst+"@a")
	zfsCmd(t, "bookmark", src+"@a", src+"#zxfer:job:a")
	zfsCmd(t, "bookmark", src+"@a", src+"#mine")
	t.Cleanup(func() { releaseAll(src); releaseAll(dst) })
	before := state(t)

	o := mustZxfer(t, "uninstall", "--dry-run", "--holds", "beta")
	require.Regexp(t, `/zxfer: \d+ builds? of zxfer, \d`, o.stdout) // including the builds of other tests
	require.Contains(t, o.stdout, "\n"+src+": 1 hold, 1 bookmark of jobs\n")
	require.Contains(t, o.stdout, "\n"+dst+": 1 hold, 0 bookmarks of jobs\n")
	require.Equal(t, 3, zxfer(t, "uninstall", "--holds", "beta").code)
	o = mustZxfer(t, "uninstall", "--yes", "beta")
	require.Contains(t, o.stdout, ", kept without --holds\n")
	require.Equal(t, before, state(t))
	require.NotContains(t, mustZxfer(t, "uninstall", "-n", "beta").stdout, "build")

	mustZxfer(t, "send", "-n", src, "beta:"+dst) // copies zxfer to beta again
	require.Contains(t, mustZxfer(t, "uninstall", "--yes", "--holds", "beta").stdout, "removed\n")
	require.Empty(t, holdsOf(t, src))
	require.Equal(t, []string{dst + "@a zxfer:mine"}, holdsOf(t, dst))
	require.Equal(t, "", run(t, "sh", "-c", "zfs list -H -o name -t bookmark | grep zxfer: || true"))
	require.Equal(t, src+"#mine\n", run(t, "sh", "-c", "zfs list -H -o name -t bookmark -r "+src))

	// Without arguments, uninstall cleans up the local host.
	zfsCmd(t, "hold", "zxfer:job:vault", src+"@a")
	mustZxfer(t, "uninstall", "--yes", "--holds")
	require.Empty(t, holdsOf(t, src))
}
