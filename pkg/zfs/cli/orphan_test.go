package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

// TestAFailedRemovalLeavesNoMark has another user hold the last snapshot of a copy after zxfer has
// released its own hold.
func TestAFailedRemovalLeavesNoMark(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	copied := p.Create("copy")
	p.Snapshot(copied, "a")
	p.Snapshot(copied, "b")
	p.ZFS("hold", "zxfer:j:t", copied+"@b")
	p.ZFS("unmount", copied)
	tool, err := exec.LookPath("zfs")
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "zfs"), []byte(`#!/bin/sh
`+tool+` "$@" || exit
case "$1" in release) test -e `+dir+`/off || `+tool+` hold theirs "$3";; esac
`), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c := cli.New(nil)
	defer c.Close()
	gone := func() zfs.Orphan {
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: copied, Versions: true})
		require.NoError(t, err)
		g := zfs.Orphan{Dataset: copied, GUID: l.Find(copied).GUID, Tag: "zxfer:j:t"}
		for _, s := range l.Find(copied).Snapshots() {
			g.Snapshots = append(g.Snapshots, zfs.SnapshotID{Name: s.Name, GUID: s.GUID})
		}
		return g
	}
	require.ErrorContains(t, c.DestroyOrphans(t.Context(), []zfs.Orphan{gone()}), copied+"@b")
	found, err := c.Properties(t.Context(), []string{copied}, []string{zfs.OrphanProperty})
	require.NoError(t, err)
	require.Equal(t, "-", found[copied][zfs.OrphanProperty].Value, "no mark")
	held, err := c.Holds(t.Context(), []string{copied + "@b"})
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"theirs", "zxfer:j:t"}, held[copied+"@b"])

	// The next attempt destroys the copy.
	require.NoError(t, os.WriteFile(dir+"/off", nil, 0o600))
	p.ZFS("release", "theirs", copied+"@b")
	require.NoError(t, c.DestroyOrphans(t.Context(), []zfs.Orphan{gone()}))
	l, err := c.List(t.Context(), zfs.ListQuery{Dataset: copied})
	require.NoError(t, err)
	require.Empty(t, l.Datasets)
}
