package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

// kernel is a host with a real kernel and tools that do nothing.
type kernel struct {
	runs [][]string
	ran  cli.RunResult
}

func (*kernel) Host() string { return "beta" }
func (*kernel) User() string { return "root" }

func (*kernel) Limits() cli.RemoteLimits { return cli.RemoteLimits{MaxArgv: 512 << 10} }

func (*kernel) Hint([]string, string) string { return "" }

func (*kernel) OpenSend(context.Context, zfs.SendSpec) (cli.Stream, error) {
	return nil, errors.ErrUnsupported
}

func (k *kernel) Run(ctx context.Context, argv []string) (cli.RunResult, error) {
	k.runs = append(k.runs, argv)
	return k.ran, exec.CommandContext(ctx, "true", argv[1:]...).Run()
}

// TestDestroyFitsArgumentLimit expects that each argument fits the kernel's limit, which exists in
// addition to the limit of the total size.
func TestDestroyFitsArgumentLimit(t *testing.T) {
	t.Parallel()
	k := &kernel{}
	c := cli.NewRemote(k, nil)
	defer c.Close()
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("tank/a@%s%04d", strings.Repeat("n", 200), i))
	}
	require.NoError(t, c.Destroy(t.Context(), names))
	var gone []string
	for _, argv := range k.runs {
		for _, n := range strings.Split(strings.TrimPrefix(argv[2], "tank/a@"), ",") {
			gone = append(gone, "tank/a@"+n)
		}
	}
	require.Equal(t, names, gone)
	require.Less(t, len(k.runs), 4)
}

// TestDestroyNamesBusySnapshot expects that if one busy snapshot makes a command fail, the error
// names this snapshot instead of the first one.
func TestDestroyNamesBusySnapshot(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stderr string // captured from OpenZFS 2.3.9
		want         []string
	}{
		{"held", "cannot destroy snapshot pq/d@c: it's being held. Run 'zfs holds -r pq/d@c' to see holders.\n" +
			"cannot destroy snapshot pq/d@b: it's being held. Run 'zfs holds -r pq/d@b' to see holders.\n", []string{"pq/d@b", "pq/d@c"}},
		{"cloned", "cannot destroy 'pq/d@c': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\npq/cl\n", []string{"pq/d@c"}},
		{"not reported", "cannot destroy snapshots: dataset is busy\n", []string{"pq/d"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := &kernel{ran: cli.RunResult{Stderr: tt.stderr, Status: 1}}
			c := cli.NewRemote(k, nil)
			defer c.Close()
			err := c.Destroy(t.Context(), []string{"pq/d@a", "pq/d@b", "pq/d@c", "pq/d@d"})
			var named []string
			joined, ok := err.(interface{ Unwrap() []error })
			require.True(t, ok, "%v", err)
			for _, err := range flatten(joined) {
				var e *zfs.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, zfs.Busy, e.Kind)
				require.Equal(t, "beta", e.Host)
				named = append(named, e.Subject)
			}
			require.Equal(t, tt.want, named)
		})
	}
}

// flatten returns joined errors, recursively.
func flatten(joined interface{ Unwrap() []error }) (out []error) {
	for _, err := range joined.Unwrap() {
		if inner, ok := err.(interface{ Unwrap() []error }); ok {
			out = append(out, flatten(inner)...)
		} else {
			out = append(out, err)
		}
	}
	return out
}

// TestFailedRemovalLeavesNoMark lets another user hold the last snapshot of a copy after zxfer has
// released its hold. It expects that the failed removal leaves no mark.
func TestFailedRemovalLeavesNoMark(t *testing.T) {
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

// TestRevertRefusesWritableDataset expects Revert to accept only read-only copies. After a heal snapshot,
// "written" no longer counts earlier writes.
func TestRevertRefusesWritableDataset(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	d := p.Create("live")
	p.Snapshot(d, "daily")
	p.Snapshot(d, "zxfer-heal-x")
	c := newCLI(t)
	require.Equal(t, fault.Refused, fault.ClassOf(c.Revert(t.Context(), d+"@daily")))
	require.Contains(t, p.ZFS("list", "-H", "-o", "name", "-t", "snapshot", "-r", d), "@zxfer-heal-x")
	p.ZFS("set", "readonly=on", d)
	require.NoError(t, c.Revert(t.Context(), d+"@daily"))
	require.NotContains(t, p.ZFS("list", "-H", "-o", "name", "-t", "snapshot", "-r", d), "@zxfer-heal-x")
}
