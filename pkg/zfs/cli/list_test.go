package cli_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

func shortNames(versions []zfs.Version) (out []string) {
	for _, v := range versions {
		out = append(out, v.Short())
	}
	return out
}

func datasetNames(list []*zfs.Dataset) (out []string) {
	for _, d := range list {
		out = append(out, d.Name)
	}
	return out
}

func TestList(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	a, b := p.Create("a"), p.Create("a/b")
	enc, _ := p.CreateEncrypted("a/b/e")
	vol := p.Create("a/b/v", "-s", "-V", "16m")
	p.ZFS("set", "zxfer:stream=no", b)
	p.ZFS("snapshot", "-r", b+"@z")
	p.ZFS("snapshot", "-r", b+"@a b")
	p.ZFS("bookmark", b+"@z", b+"#z")
	p.Snapshot(a, "other")
	c := newCLI(t)

	t.Run("recursive", func(t *testing.T) {
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Recursive: true, Versions: true})
		require.NoError(t, err)
		require.Equal(t, b, l.Root)
		require.Equal(t, []string{b, enc, vol}, datasetNames(l.Datasets))
		require.Equal(t, []string{p.Name, a}, datasetNames(l.Ancestors))
		require.Equal(t, []string{"#z", "@z", "@a b"}, shortNames(l.Datasets[0].Versions))
		require.Equal(t, []string{"@z", "@a b"}, shortNames(l.Datasets[2].Versions))
		require.Empty(t, l.Ancestors[1].Versions)
		require.Equal(t, zfs.Volume, l.Find(vol).Type)
		require.Equal(t, "16777216", l.Find(vol).Get("volsize"))
		require.True(t, l.Find(enc).Encrypted())
		require.True(t, l.Find(enc).KeyLoaded())
		require.Equal(t, enc, l.Find(enc).Get("encryptionroot"))
		require.False(t, l.Find(b).Encrypted())
		require.Equal(t, zfs.Property{Value: "no", Source: "local"}, l.Find(b).Properties[zfs.FlagsProperty])
		require.Equal(t, "inherited from "+b, l.Find(enc).Properties[zfs.FlagsProperty].Source)
		require.Equal(t, p.Name, l.Pool.Name)
		require.Equal(t, "ONLINE", l.Pool.Properties["health"])
		require.True(t, l.Pool.HasFeature("encryption"))
	})
	t.Run("without ancestors", func(t *testing.T) {
		whole, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Recursive: true, Versions: true})
		require.NoError(t, err)
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Recursive: true, Versions: true, NoAncestors: true})
		require.NoError(t, err)
		require.Equal(t, whole.Datasets, l.Datasets)
		require.Empty(t, l.Ancestors)
		require.Empty(t, l.Pool.Name)
	})
	t.Run("versions and identity", func(t *testing.T) {
		whole, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Recursive: true, Versions: true})
		require.NoError(t, err)
		for _, only := range [][]string{nil, {b, vol}} {
			l, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Recursive: true, Only: only, Versions: true, Identity: true, NoAncestors: true})
			require.NoError(t, err)
			require.Len(t, l.Datasets, cmp.Or(len(only), len(whole.Datasets)))
			for _, d := range l.Datasets {
				of := whole.Find(d.Name)
				require.Equal(t, of.Versions, d.Versions)
				require.Equal(t, of.GUID, d.GUID)
				require.Len(t, d.Properties, 2, "type and guid")
			}
		}
	})
	t.Run("one dataset", func(t *testing.T) {
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: a, Versions: true})
		require.NoError(t, err)
		require.Equal(t, []string{a}, datasetNames(l.Datasets))
		require.Equal(t, []string{"@other"}, shortNames(l.Datasets[0].Versions))
		require.Equal(t, []string{p.Name}, datasetNames(l.Ancestors))
	})
	t.Run("pool", func(t *testing.T) {
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: p.Name, Recursive: true})
		require.NoError(t, err)
		require.Equal(t, []string{p.Name, a, b, enc, vol}, datasetNames(l.Datasets))
		require.Empty(t, l.Ancestors)
		require.Empty(t, l.Datasets[2].Versions)
	})
	t.Run("missing dataset", func(t *testing.T) {
		for _, recursive := range []bool{true, false} {
			l, err := c.List(t.Context(), zfs.ListQuery{Dataset: b + "/none/x", Recursive: recursive, Versions: true})
			require.NoError(t, err)
			require.Empty(t, l.Datasets)
			require.Equal(t, []string{p.Name, a, b}, datasetNames(l.Ancestors))
		}
	})
	t.Run("missing pool", func(t *testing.T) {
		_, err := c.List(t.Context(), zfs.ListQuery{Dataset: "zxt-no-pool/x", Recursive: true, Versions: true})
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
		require.ErrorContains(t, err, "zxt-no-pool")
	})
	t.Run("only some", func(t *testing.T) {
		l, err := c.List(t.Context(), zfs.ListQuery{Dataset: b, Only: []string{vol, b + "/none", b}, Versions: true, Changed: true})
		require.NoError(t, err)
		require.Equal(t, []string{b, vol}, datasetNames(l.Datasets))
		require.Equal(t, []string{p.Name, a}, datasetNames(l.Ancestors))
		require.Equal(t, []string{"#z", "@z", "@a b"}, shortNames(l.Datasets[0].Versions))
		require.Equal(t, []string{"@z", "@a b"}, shortNames(l.Datasets[1].Versions))
		require.InDelta(t, time.Now().Unix(), l.Started, 60)
		// Unknown before 2.2; everything else is complete.
		if changed := l.Datasets[1].SnapshotsChanged(); changed != 0 {
			require.InDelta(t, l.Started, changed, 60)
		}
	})
	t.Run("illegal", func(t *testing.T) {
		_, err := c.List(t.Context(), zfs.ListQuery{Dataset: "-r", Recursive: true, Versions: true})
		require.Equal(t, fault.Usage, fault.ClassOf(err))
		_, err = c.List(t.Context(), zfs.ListQuery{Dataset: b, Only: []string{"-r"}})
		require.Equal(t, fault.Usage, fault.ClassOf(err))
	})
}

// TestListProcesses expects List to run at most four processes, all read-only. It does not run in
// parallel, because it sets PATH.
func TestListProcesses(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{})
	for i := range 8 {
		p.Create(fmt.Sprintf("a%d", i))
	}
	p.ZFS("snapshot", "-r", p.Name+"@x")
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	for _, tool := range []string{"zfs", "zpool"} {
		shim := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nexec /usr/sbin/%s \"$@\"\n", tool, count, tool)
		testenv.WriteProgram(t, filepath.Join(dir, tool), shim)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c := newCLI(t)
	_, err := c.List(t.Context(), zfs.ListQuery{Dataset: p.Name}) // notices that zpool is older than 2.2
	require.NoError(t, err)
	require.NoError(t, os.Remove(count))
	_, err = c.List(t.Context(), zfs.ListQuery{Dataset: p.Name, Recursive: true, Versions: true})
	require.NoError(t, err)
	_, err = c.List(t.Context(), zfs.ListQuery{Dataset: p.Dataset("a1"), Recursive: true, Versions: true})
	require.NoError(t, err)
	b, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Len(t, strings.Split(strings.TrimSpace(string(b)), "\n"), 3+4, "%s", b)
}

func TestProperties(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	ds := p.Create("d", "-o", "compression=zstd", "-o", "zxfer:note=two\nlines, a\ttab")
	p.Snapshot(ds, "a")
	p.ZFS("bookmark", ds+"@a", ds+"#a")
	c := newCLI(t)
	got, err := c.Properties(t.Context(), []string{ds, ds + "@a", ds + "#a", ds + "@none", ds + "#none", p.Dataset("none"), "zxt-no-pool"}, []string{"guid", "type"})
	require.NoError(t, err)
	require.Len(t, got, 3)
	require.Equal(t, got[ds+"@a"]["guid"], got[ds+"#a"]["guid"])
	require.Equal(t, "bookmark", got[ds+"#a"]["type"].Value)

	local, err := c.Properties(t.Context(), []string{ds}, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]zfs.Property{
		"compression": {Value: "zstd", Source: "local"},
		"zxfer:note":  {Value: "two\nlines, a\ttab", Source: "local"},
	}, local[ds])

	_, err = c.Properties(t.Context(), []string{ds}, []string{"nosuch"})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported})
	_, err = c.Properties(t.Context(), []string{"-s"}, nil)
	require.Equal(t, fault.Usage, fault.ClassOf(err))
	none, err := c.Properties(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestDatasetOf(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	ds := p.Create("d")
	require.NoError(t, os.MkdirAll(p.Path(ds, "x/y"), 0o755))
	c := newCLI(t)
	for _, path := range []string{p.Path(ds, ""), p.Path(ds, "x/y")} {
		got, err := c.DatasetOf(t.Context(), path)
		require.NoError(t, err)
		require.Equal(t, ds, got)
	}
	for _, path := range []string{"/proc", "/nowhere"} {
		_, err := c.DatasetOf(t.Context(), path)
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound}, path)
		require.ErrorContains(t, err, path)
	}
	_, err := c.DatasetOf(t.Context(), "x")
	require.Error(t, err)
}

func TestCreateParents(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	there := p.Create("there")
	require.NoError(t, c.CreateParents(t.Context(), there+"/x/y/z"))
	require.NoError(t, c.CreateParents(t.Context(), there+"/x/y/z"), "again")
	l, err := c.List(t.Context(), zfs.ListQuery{Dataset: p.Name, Recursive: true})
	require.NoError(t, err)
	require.Equal(t, []string{p.Name, there, there + "/x", there + "/x/y"}, datasetNames(l.Datasets))
	for _, d := range l.Datasets[2:] {
		require.Equal(t, zfs.Property{Value: "off", Source: "local"}, d.Properties["canmount"])
		require.Equal(t, "no", d.Get("mounted"))
		require.NotEqual(t, "local", d.Properties["mountpoint"].Source)
	}
	require.Equal(t, "on", l.Datasets[1].Get("canmount"), "existing datasets are unchanged")
	require.NoError(t, c.CreateParents(t.Context(), p.Dataset("new")))
	require.ErrorIs(t, c.CreateParents(t.Context(), "zxt-no-pool/a/b"), &zfs.Error{Kind: zfs.NotFound})
}

func TestNoTools(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/zfs"); err == nil {
		t.Skip("zfs is installed where PATH does not matter")
	}
	t.Setenv("PATH", t.TempDir())
	c := cli.New(nil)
	defer c.Close()
	_, err := c.List(t.Context(), zfs.ListQuery{Dataset: "tank"})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NoZFS})
	require.NotEmpty(t, fault.HintOf(err))
	_, err = c.OpenSend(t.Context(), zfs.SendSpec{Dataset: "tank", To: "a"})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NoZFS})
}
