package zfstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/lzc"
)

func TestBackendCLI(t *testing.T) {
	Require(t)
	c := cli.New(nil)
	t.Cleanup(func() { _ = c.Close() })
	conforms(t, c)
}

func TestBackendLZC(t *testing.T) {
	Require(t)
	c, err := lzc.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	conforms(t, c)
}

// conforms tests the contract of cli.Backend on real pools.
func conforms(t *testing.T, b cli.Backend) {
	for name, test := range map[string]func(*testing.T, *Pool, cli.Backend){
		"estimate":              testEstimate,
		"estimate fails":        testEstimateFails,
		"send":                  testSend,
		"snapshot":              testSnapshot,
		"atomic snapshots":      testSnapshotAtomic,
		"hold and release":      testHold,
		"bookmark":              testBookmark,
		"destroy":               testDestroy,
		"destroy refuses":       testDestroyRefuses,
		"nothing to do":         testNothing,
		"illegal names":         testNames,
		"names with spaces":     testSpaces,
		"many":                  testMany,
		"cancelled":             testCancelled,
		"read-only pool":        testReadOnly,
		"works after a failure": testAfterFailure,
	} {
		t.Run(name, func(t *testing.T) { test(t, NewPool(t, Options{}), b) })
	}
}

// testSend compares streams with the output of zfs(8).
func testSend(t *testing.T, p *Pool, b cli.Backend) {
	ds := p.Name + "/a b"
	p.ZFS("create", ds)
	p.ZFS("snapshot", ds+"@one")
	p.ZFS("bookmark", ds+"@one", ds+"#one")
	require.NoError(t, os.WriteFile(p.ZFS("get", "-Ho", "value", "mountpoint", ds)+"/f", []byte("content"), 0o600))
	p.ZFS("snapshot", ds+"@two")
	for _, s := range []zfs.SendSpec{
		{To: "one"}, {From: "@one", To: "two"}, {From: "#one", To: "two"},
		{From: "@one", To: "two", Flags: zfs.StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}},
		{From: "@one", To: "two", Flags: zfs.StreamFlags{Raw: true}},
	} {
		s.Dataset = ds
		args, err := zfs.SendArgs(s)
		require.NoError(t, err)
		src, err := b.OpenSend(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, "zfs send "+ds+"@"+s.To, src.Name())
		got, err := io.ReadAll(src)
		require.NoError(t, err, "%v", args)
		require.NoError(t, src.Close())
		want, err := exec.Command("zfs", args...).Output()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%v: %d bytes, of zfs send %d", args, len(got), len(want))
	}
	src, err := b.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, From: "@one", To: "three"})
	require.NoError(t, err)
	_, err = io.ReadAll(src)
	requireKind(t, err, zfs.NotFound, ds)
	require.NoError(t, src.Close())
	// An unread stream must not block later operations.
	src, err = b.OpenSend(t.Context(), zfs.SendSpec{Dataset: ds, To: "two"})
	require.NoError(t, err)
	require.NoError(t, src.Close())
	require.NoError(t, b.Snapshot(t.Context(), []string{ds + "@three"}))
}

// requireKind requires an error of a kind that names the subject.
func requireKind(t *testing.T, err error, kind zfs.Kind, subject string) {
	t.Helper()
	require.Error(t, err)
	require.ErrorIs(t, err, &zfs.Error{Kind: kind}, "%+v", err)
	require.ErrorContains(t, err, subject)
}

// guids maps every snapshot and bookmark of the pool to its GUID.
func (p *Pool) guids() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(p.ZFS("list", "-Hp", "-r", "-t", "snapshot,bookmark", "-o", "name,guid", p.Name)) {
		name, guid, _ := strings.Cut(strings.TrimSpace(line), "\t")
		out[name] = guid
	}
	return out
}

func (p *Pool) names() []string { return slices.Sorted(maps.Keys(p.guids())) }

func (p *Pool) holds(snapshot string) []string {
	var tags []string
	for line := range strings.Lines(p.ZFS("holds", "-H", snapshot)) {
		tags = append(tags, strings.Split(line, "\t")[1])
	}
	return tags
}

func testEstimate(t *testing.T, p *Pool, b cli.Backend) {
	ds := p.Create("d")
	p.Write(ds, "f", 4<<20, 1)
	p.Snapshot(ds, "a")
	p.Write(ds, "g", 1<<20, 2)
	p.Snapshot(ds, "b")
	p.ZFS("bookmark", ds+"@a", ds+"#a")
	p.Write(ds, "h", 2<<20, 3)
	p.Snapshot(ds, "c")
	enc, _ := p.CreateEncrypted("e")
	p.Write(enc, "f", 3<<20, 4)
	p.Snapshot(enc, "a")
	p.ZFS("clone", ds+"@a", p.Dataset("clone"))
	p.Write(p.Dataset("clone"), "k", 1<<20, 5)
	p.Snapshot(p.Dataset("clone"), "a")

	sizes, err := b.Estimate(t.Context(), []zfs.SendSpec{
		{Dataset: ds, To: "a"},
		{Dataset: ds, From: "@a", To: "b"},
		{Dataset: ds, From: "#a", To: "b"},
		{Dataset: ds, From: "@a", Through: []string{"b"}, To: "c", Flags: zfs.StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}},
		{Dataset: enc, To: "a", Flags: zfs.StreamFlags{Raw: true}},
		{Dataset: p.Dataset("clone"), From: ds + "@a", To: "a"},
		{Dataset: ds, To: "a", Token: p.interruptedToken(ds + "@a")},
	})
	require.NoError(t, err)
	for i, want := range []uint64{4 << 20, 1 << 20, 1 << 20, 3 << 20, 3 << 20, 1 << 20, 2 << 20} {
		require.InDelta(t, want, sizes[i], float64(want)/4+100<<10, "stream %d", i)
	}
}

// interruptedToken returns the token of a receive that stopped about half way through a full stream
// of 4 MiB.
func (p *Pool) interruptedToken(snapshot string) string {
	target := p.Dataset("partial")
	Run(p.t, "sh", "-c", fmt.Sprintf("zfs send '%s' | head -c 2200000 | zfs receive -s -u '%s' 2>/dev/null || true", snapshot, target))
	token := p.Get(target, "receive_resume_token")
	require.NotEqual(p.t, "-", token)
	return token
}

func testEstimateFails(t *testing.T, p *Pool, b cli.Backend) {
	ds := p.Create("d")
	p.Snapshot(ds, "a")
	for _, s := range []zfs.SendSpec{
		{Dataset: ds, To: "none"},
		{Dataset: ds, From: "@none", To: "a"},
		{Dataset: ds, From: "#none", To: "a"},
		{Dataset: p.Dataset("none"), To: "a"},
		{Dataset: "zxt-no-pool/d", To: "a"},
	} {
		_, err := b.Estimate(t.Context(), []zfs.SendSpec{{Dataset: ds, To: "a"}, s})
		requireKind(t, err, zfs.NotFound, s.Dataset)
	}
}

func testSnapshot(t *testing.T, p *Pool, b cli.Backend) {
	one, two := p.Create("one"), p.Create("two")
	require.NoError(t, b.Snapshot(t.Context(), []string{p.Name + "@x", one + "@x", two + "@y"}))
	require.Equal(t, []string{one + "@x", two + "@y", p.Name + "@x"}, p.names())
}

func testSnapshotAtomic(t *testing.T, p *Pool, b cli.Backend) {
	one, two := p.Create("one"), p.Create("two")
	p.Snapshot(two, "x")
	requireKind(t, b.Snapshot(t.Context(), []string{one + "@x", two + "@x"}), zfs.Exists, p.Name)
	requireKind(t, b.Snapshot(t.Context(), []string{one + "@x", p.Dataset("none") + "@x"}), zfs.NotFound, p.Name)
	for _, wrong := range [][]string{
		{one + "@x", one + "@y"},
		{one + "@x", "zxt-other/d@x"},
	} {
		require.Equal(t, fault.Usage, fault.ClassOf(b.Snapshot(t.Context(), wrong)), "%v", wrong)
	}
	require.Equal(t, []string{two + "@x"}, p.names())
}

func testHold(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	ds := p.Create("d")
	one, two := p.Snapshot(ds, "one"), p.Snapshot(ds, "two")
	require.NoError(t, b.Hold(ctx, "keep", []string{one}))
	require.NoError(t, b.Hold(ctx, "keep", []string{one, two}), "an existing tag is not an error")
	require.NoError(t, b.Hold(ctx, "keep", []string{one, two}), "several existing tags are not an error")
	require.NoError(t, b.Hold(ctx, "more", []string{one}))
	require.ElementsMatch(t, []string{"keep", "more"}, p.holds(one))
	require.Equal(t, []string{"keep"}, p.holds(two))

	requireKind(t, b.Hold(ctx, "keep", []string{ds + "@none"}), zfs.NotFound, ds+"@none")
	requireKind(t, b.Hold(ctx, "keep", []string{p.Dataset("none") + "@one"}), zfs.NotFound, p.Dataset("none"))
	requireKind(t, b.Destroy(ctx, []string{one}), zfs.Busy, one)

	gone := []string{ds + "@none", p.Dataset("none") + "@x", "zxt-no-pool/d@x"}
	require.NoError(t, b.Release(ctx, "keep", append(gone, one, two)), "a missing hold is not an error")
	require.Equal(t, []string{"more"}, p.holds(one))
	require.Empty(t, p.holds(two))
	require.NoError(t, b.Release(ctx, "keep", []string{one}))
}

func testBookmark(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	ds := p.Create("d")
	one, two := p.Snapshot(ds, "one"), p.Snapshot(ds, "two")
	require.NoError(t, b.Bookmark(ctx, map[string]string{ds + "#one": one, ds + "#two": two}))
	guids := p.guids()
	require.Equal(t, guids[one], guids[ds+"#one"])
	require.Equal(t, guids[two], guids[ds+"#two"])

	require.NoError(t, b.Bookmark(ctx, map[string]string{ds + "#one": one, ds + "#three": two}), "a repeated bookmark is not an error")
	require.Contains(t, p.guids(), ds+"#three")
	requireKind(t, b.Bookmark(ctx, map[string]string{ds + "#one": two}), zfs.Exists, ds+"#one")
	requireKind(t, b.Bookmark(ctx, map[string]string{ds + "#four": ds + "@none"}), zfs.NotFound, ds+"#four")
	require.Equal(t, fault.Usage, fault.ClassOf(b.Bookmark(ctx, map[string]string{p.Name + "#x": one})))
}

func testDestroy(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	ds, other := p.Create("d"), p.Create("e")
	for _, s := range []string{"one", "two", "three"} {
		p.Snapshot(ds, s)
		p.ZFS("bookmark", ds+"@"+s, ds+"#"+s)
	}
	p.Snapshot(other, "one")
	require.NoError(t, b.Destroy(ctx, []string{
		ds + "@one", ds + "@two", ds + "@none", other + "@one", p.Dataset("none") + "@x",
		ds + "#one", ds + "#none", p.Dataset("none") + "#x",
	}))
	require.Equal(t, []string{ds + "#three", ds + "#two", ds + "@three"}, p.names())
	p.Snapshot(ds, "four")
	p.Snapshot(ds, "five")
	require.NoError(t, b.Hold(ctx, "keep", []string{ds + "@four"}))
	err := b.Destroy(ctx, []string{ds + "@three", ds + "@four", ds + "@five"})
	requireKind(t, err, zfs.Busy, ds+"@four")
	require.NotContains(t, err.Error(), ds+"@three", "the error names the snapshot in use")
	require.Contains(t, p.names(), ds+"@three")
	require.NoError(t, b.Release(ctx, "keep", []string{ds + "@four"}))
	p.ZFS("clone", ds+"@three", p.Dataset("clone"))
	requireKind(t, b.Destroy(ctx, []string{ds + "@three"}), zfs.Busy, ds+"@three")
	require.Contains(t, p.names(), ds+"@three")
}

func testDestroyRefuses(t *testing.T, p *Pool, b cli.Backend) {
	ds := p.Create("d")
	one := p.Snapshot(ds, "one")
	for _, wrong := range []string{ds, p.Name, ds + "@", ds + "@one%", ds + "@one,two", "", "-r", ds + "@one@two"} {
		err := b.Destroy(t.Context(), []string{one, wrong})
		require.Equal(t, fault.Usage, fault.ClassOf(err), "%q: %v", wrong, err)
	}
	require.Equal(t, []string{one}, p.names())
}

func testNothing(t *testing.T, _ *Pool, b cli.Backend) {
	ctx := t.Context()
	sizes, err := b.Estimate(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, sizes)
	require.NoError(t, b.Snapshot(ctx, nil))
	require.NoError(t, b.Hold(ctx, "x", nil))
	require.NoError(t, b.Release(ctx, "x", nil))
	require.NoError(t, b.Bookmark(ctx, nil))
	require.NoError(t, b.Destroy(ctx, nil))
}

func testNames(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	long := p.Name + "@" + strings.Repeat("x", 260)
	for _, name := range []string{long, p.Name + "@a*b", p.Name + "@a/b", p.Name + "//d@x", "-x@y"} {
		_, err := b.Estimate(ctx, []zfs.SendSpec{{Dataset: strings.Split(name, "@")[0], To: strings.Split(name, "@")[1]}})
		for op, err := range map[string]error{
			"estimate": err,
			"snapshot": b.Snapshot(ctx, []string{name}),
			"hold":     b.Hold(ctx, "x", []string{name}),
			"release":  b.Release(ctx, "x", []string{name}),
			"bookmark": b.Bookmark(ctx, map[string]string{p.Name + "#x": name}),
			"destroy":  b.Destroy(ctx, []string{name}),
		} {
			require.ErrorIs(t, err, &zfs.Error{Kind: zfs.InvalidName}, "%s %q", op, name)
		}
	}
	require.Error(t, b.Hold(ctx, "-r", []string{p.Name + "@x"}))
}

func testSpaces(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	ds := p.Create("with space")
	p.Write(ds, "f", 1<<20, 1)
	snap := ds + "@a day: 1"
	require.NoError(t, b.Snapshot(ctx, []string{snap}))
	require.NoError(t, b.Hold(ctx, "a tag", []string{snap}))
	require.Equal(t, []string{"a tag"}, p.holds(snap))
	require.NoError(t, b.Release(ctx, "a tag", []string{snap}))
	require.NoError(t, b.Bookmark(ctx, map[string]string{ds + "#b m": snap}))
	sizes, err := b.Estimate(ctx, []zfs.SendSpec{{Dataset: ds, To: "a day: 1"}})
	require.NoError(t, err)
	require.Greater(t, sizes[0], uint64(1<<20))
	require.NoError(t, b.Destroy(ctx, []string{snap, ds + "#b m"}))
	require.Empty(t, p.names())
}

func testMany(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	ds := p.Create("d")
	var snaps []string
	marks := map[string]string{}
	for i := range 20 {
		s := p.Snapshot(ds, strconv.Itoa(i))
		snaps, marks[ds+"#"+strconv.Itoa(i)] = append(snaps, s), s
	}
	require.NoError(t, b.Hold(ctx, "h", snaps))
	require.NoError(t, b.Release(ctx, "h", snaps))
	require.NoError(t, b.Bookmark(ctx, marks))
	require.Len(t, p.names(), 40)
	require.NoError(t, b.Destroy(ctx, append(snaps, slices.Collect(maps.Keys(marks))...)))
	require.Empty(t, p.names())
}

func testCancelled(t *testing.T, p *Pool, b cli.Backend) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Snapshot(ctx, []string{p.Name + "@x"}), context.Canceled)
	_, err := b.Estimate(ctx, []zfs.SendSpec{{Dataset: p.Name, To: "x"}})
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, p.names())
	require.NoError(t, b.Snapshot(t.Context(), []string{p.Name + "@x"}), "usable afterwards")
}

func testReadOnly(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	snap := p.Snapshot(p.Name, "x")
	dir := t.TempDir()
	Run(t, "zpool", "export", p.Name)
	Run(t, "zpool", "import", "-N", "-o", "readonly=on", "-o", "altroot="+dir, "-d", p.dir(), p.Name)
	for op, err := range map[string]error{
		"snapshot": b.Snapshot(ctx, []string{p.Name + "@y"}),
		"hold":     b.Hold(ctx, "h", []string{snap}),
		"bookmark": b.Bookmark(ctx, map[string]string{p.Name + "#y": snap}),
		"destroy":  b.Destroy(ctx, []string{snap}),
	} {
		require.ErrorIs(t, err, &zfs.Error{Kind: zfs.PoolFault}, op)
	}
}

func testAfterFailure(t *testing.T, p *Pool, b cli.Backend) {
	ctx := t.Context()
	err := b.Snapshot(ctx, []string{p.Dataset("none") + "@x"})
	var e *zfs.Error
	require.True(t, errors.As(err, &e))
	require.Equal(t, zfs.OpSnapshot, e.Op)
	require.NoError(t, b.Snapshot(ctx, []string{p.Name + "@x"}))
}

func (p *Pool) dir() string { return strings.TrimSuffix(p.Dir, string(os.PathSeparator)+"mnt") }
