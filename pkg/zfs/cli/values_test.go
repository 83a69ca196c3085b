package cli_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// TestValueIsNotParsedAsRow expects that no property value is parsed as a row. Users can set any
// value, which once stopped listings of parents, or changed values of other datasets.
func TestValueIsNotParsedAsRow(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	top := p.Create("a")
	other := p.Create("a/other")
	p.ZFS("set", "org:note=plain", other)
	p.Snapshot(other, "x")
	values := map[string]string{}
	for dataset, value := range map[string]string{
		"a/row":       "x\tlocal\n" + other + "\ttype\tnonsense\t-\n" + top + "\torg:y\tz",
		"a/break":     "one\ttwo\nthree",
		"a/setting":   "x\tlocal\n" + other + "\tsetuid\toff\tlocal\n" + top + "\torg:y\tz",
		"a/invented":  "x\tlocal\n" + top + "/none\ttype\tfilesystem\t-\n" + top + "\torg:y\tz",
		"a/guess":     "x\tlocal\n" + p.Dataset("a/guess") + "\tzxfer:fence-0\t-\t-\n" + other + "\tguid\t7\t-",
		"a/breaks":    "\n\n",
		"a/returns":   "one\r\ntwo\r",
		"a/tabs":      "\t\t\t",
		"a/as if not": "-\t-",
	} {
		values[p.Create(dataset)] = value
		p.ZFS("set", zfs.FlagsProperty+"="+value, "org:note="+value, p.Dataset(dataset))
	}
	paths := p.Create("a/path")
	p.ZFS("set", "mountpoint=/mnt/x\tlocal\n"+other+"\tguid\t7\t-\n"+paths, paths)
	c := newCLI(t)

	l, err := c.List(t.Context(), zfs.ListQuery{Dataset: top, Recursive: true, Versions: true, Newest: true})
	require.NoError(t, err)
	require.Len(t, l.Datasets, 3+len(values))
	require.Equal(t, zfs.Filesystem, l.Find(other).Type)
	require.NotEqual(t, uint64(7), l.Find(other).GUID)
	require.Equal(t, zfs.Property{Value: "-", Source: "-"}, l.Find(other).Properties[zfs.FlagsProperty])
	require.Contains(t, l.Find(paths).Get("mountpoint"), "/mnt/x\tlocal\n")
	names := []string{other, other + "@x"}
	for dataset, value := range values {
		names = append(names, dataset)
		require.Equal(t, zfs.Property{Value: value, Source: "local"}, l.Find(dataset).Properties[zfs.FlagsProperty])
	}

	local, err := c.Properties(t.Context(), names, nil)
	require.NoError(t, err)
	require.Equal(t, map[string]zfs.Property{"org:note": {Value: "plain", Source: "local"}}, local[other])
	require.NotContains(t, local, other+"@x")
	asked, err := c.Properties(t.Context(), names, []string{"org:note", "guid", "mountpoint"})
	require.NoError(t, err)
	require.Equal(t, zfs.Property{Value: "plain", Source: "inherited from " + other}, asked[other+"@x"]["org:note"])
	require.Len(t, asked, len(names))
	for dataset, value := range values {
		want := zfs.Property{Value: value, Source: "local"}
		require.Equal(t, map[string]zfs.Property{"org:note": want, zfs.FlagsProperty: want}, local[dataset])
		require.Equal(t, want, asked[dataset]["org:note"])
		require.Len(t, asked[dataset], 3)
	}

	// Since 2.2, pools have user properties.
	if exec.Command("zpool", "set", "org:x=x\tlocal\n"+p.Name+"\tguid\t7\t-", p.Name).Run() == nil {
		l, err = c.List(t.Context(), zfs.ListQuery{Dataset: top})
		require.NoError(t, err)
		require.NotEqual(t, uint64(7), l.Pool.GUID)
	}
}

// TestTagIsNotParsedAsRow expects that no hold tag is parsed as a row. Tags are free text, and tags
// on a user's own snapshots must not stop the listing of other snapshots or add to it.
func TestTagIsNotParsedAsRow(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	his, other, free := p.Snapshot(p.Create("his"), "x"), p.Snapshot(p.Create("other"), "x"), p.Snapshot(p.Create("free"), "x")
	p.ZFS("hold", "keep", other)
	const at = "\tMon Jan  1 00:00 2024\n"
	c := newCLI(t)
	for _, tag := range []string{"one\ntwo", "x" + at + other + "\tforged", "x" + at + free + "\tforged", "tabs\tand more\t"} {
		p.ZFS("hold", tag, his)
		p.ZFS("hold", "mine", his)
		got, err := c.Holds(t.Context(), []string{his, other, free, p.Dataset("none") + "@x"})
		require.NoError(t, err, "%q", tag)
		require.Len(t, got, 2, "%q", tag)
		require.Equal(t, []string{"keep"}, got[other], "%q", tag)
		require.Contains(t, got[his], "mine", "%q: forged rows of the user's own snapshots are harmless", tag)
		p.ZFS("release", tag, his)
		p.ZFS("release", "mine", his)
	}
}
