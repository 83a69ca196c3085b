package cli_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

func digest(t *testing.T, c *cli.CLI, s zfs.SendSpec) string {
	t.Helper()
	b := stream(t, c, s)
	d, err := zfs.ContentDigest(bytes.NewReader(b), zfs.DigestRange{}, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(len(b)), d.Bytes)
	return d.Sum + d.Zeroed
}

// churn changes files in ways that leave different traces in streams.
func churn(t *testing.T, p *zfstest.Pool, ds string, round uint64) {
	t.Helper()
	name := func(s string) string { return p.Path(ds, s) }
	p.Write(ds, "big", 3<<20, round)
	for i := range 60 {
		f := name("small-" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
		if i%3 == int(round)%3 {
			_ = os.Remove(f)
			continue
		}
		require.NoError(t, os.WriteFile(f, bytes.Repeat([]byte{byte(round)}, i*37), 0o644))
	}
	require.NoError(t, os.Chmod(name("big"), 0o600+os.FileMode(round)))
	require.NoError(t, os.MkdirAll(name("dir/sub"), 0o755))
	require.NoError(t, os.Rename(name("big"), name("dir/big")))
	require.NoError(t, os.WriteFile(name("zeroes"), make([]byte, 1<<20), 0o644))
	require.NoError(t, os.WriteFile(name("text"), bytes.Repeat([]byte("compressible "), 50_000*int(round)), 0o644))
	f, err := os.OpenFile(name("sparse"), os.O_CREATE|os.O_RDWR, 0o644)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("end"), 5<<20)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(int64(6<<20)-int64(round)<<19))
	require.NoError(t, f.Close())
	p.Write(ds, "shrinks", 1<<20>>round, round)
}

func TestContentDigest(t *testing.T) {
	t.Parallel()
	lec := zfs.StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}
	raw := zfs.StreamFlags{Raw: true}
	for _, test := range []struct {
		name   string
		create []string
		enc    bool
		send   zfs.StreamFlags
		digest []zfs.StreamFlags
		set    map[string]string
	}{
		{"raw encrypted", nil, true, raw, []zfs.StreamFlags{raw}, nil},
		{"plain", nil, false, zfs.StreamFlags{}, []zfs.StreamFlags{{}, lec}, nil},
		{"large, embedded, compressed", []string{"-o", "recordsize=1m", "-o", "xattr=sa", "-o", "dnodesize=auto"}, false, lec, []zfs.StreamFlags{lec, lec.ForDigest()}, nil},
		{"compressed otherwise", []string{"-o", "compression=off"}, false, lec, []zfs.StreamFlags{lec.ForDigest()}, map[string]string{"compression": "zstd"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, q := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{})
			c := newCLI(t)
			var ds string
			if test.enc {
				ds, _ = p.CreateEncrypted("d", test.create...)
			} else {
				ds = p.Create("d", test.create...)
			}
			target := q.Dataset("d")
			from := ""
			seen := map[string]string{}
			for round, to := range []string{"a", "b", "c"} {
				churn(t, p, ds, uint64(round+1))
				p.Snapshot(ds, to)
				store(t, c, zfs.ReceiveSpec{Target: target, Set: test.set}, stream(t, c, zfs.SendSpec{Dataset: ds, From: from, To: to, Flags: test.send}))
				test.set = nil
				for _, f := range test.digest {
					for _, base := range []string{from, ""} {
						left := digest(t, c, zfs.SendSpec{Dataset: ds, From: base, To: to, Flags: f})
						right := digest(t, c, zfs.SendSpec{Dataset: target, From: base, To: to, Flags: f})
						if base != "" { // old holes may be sent: the digests of the whole snapshots decide
							left, right = left[:32], right[:32]
						}
						require.Equal(t, left, right, "%s to %s, %+v", base, to, f)
						if other, twice := seen[left]; twice && other != base+to {
							t.Fatalf("%s..%s and %s have one digest", base, to, other)
						}
						seen[left] = base + to
					}
				}
				from = "@" + to
			}
			ranged := zfs.SendSpec{From: "@a", Through: []string{"b"}, To: "c", Flags: test.digest[0]}
			ranged.Dataset = ds
			left := digest(t, c, ranged)[:32]
			ranged.Dataset = target
			require.Equal(t, left, digest(t, c, ranged)[:32], "range")
		})
	}
}

func TestContentDigestVolume(t *testing.T) {
	t.Parallel()
	p, q := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds, target := p.Create("v", "-s", "-V", "16m"), q.Dataset("v")
	from := ""
	for round, to := range []string{"a", "b"} {
		dev := zfstest.Device(t, ds)
		var key [32]byte
		key[0] = byte(round)
		data := make([]byte, 3<<20)
		_, _ = rand.NewChaCha8(key).Read(data)
		_, err := dev.WriteAt(data, int64(round)<<20)
		require.NoError(t, err)
		require.NoError(t, dev.Sync())
		require.NoError(t, dev.Close())
		p.Snapshot(ds, to)
		b := stream(t, c, zfs.SendSpec{Dataset: ds, From: from, To: to})
		require.Greater(t, len(b), 3<<20)
		store(t, c, zfs.ReceiveSpec{Target: target}, b)
		for _, base := range []string{from, ""} {
			require.Equal(t,
				digest(t, c, zfs.SendSpec{Dataset: ds, From: base, To: to}),
				digest(t, c, zfs.SendSpec{Dataset: target, From: base, To: to}))
		}
		from = "@" + to
	}
}

// TestContentDigestFindsOneBlock changes one block in a snapshot with the same GUID, and expects a
// difference. A comparison of GUIDs cannot detect it.
func TestContentDigestFindsOneBlock(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	c := newCLI(t)
	ds := p.Create("d", "-o", "compression=off")
	p.Write(ds, "f", 2<<20, 1)
	p.Snapshot(ds, "a")
	b := stream(t, c, zfs.SendSpec{Dataset: ds, To: "a"})
	want, err := zfs.ContentDigest(bytes.NewReader(b), zfs.DigestRange{}, 0)
	require.NoError(t, err)
	b[len(b)/2] ^= 1
	got, err := zfs.ContentDigest(bytes.NewReader(b), zfs.DigestRange{}, 0)
	require.NoError(t, err)
	require.NotEqual(t, want.Sum, got.Sum)
}

// TestContentDigestWithOtherBlockSize expects that a correct copy counts as equal if a file was
// rewritten after its recordsize was raised. Its blocks are larger than those in its copy.
func TestContentDigestWithOtherBlockSize(t *testing.T) {
	t.Parallel()
	large := zfs.StreamFlags{LargeBlocks: true}
	for _, test := range []struct {
		name          string
		before, after string
		flags         zfs.StreamFlags
		create        []string
	}{
		{"raised", "128k", "1m", large, nil},
		{"raised, sent without -L", "128k", "1m", zfs.StreamFlags{}, nil},
		{"raised, small", "8k", "128k", large, []string{"-o", "compression=zstd"}},
		{"lowered", "1m", "128k", large, []string{"-o", "compression=off"}},
		{"lowered, small", "128k", "4k", zfs.StreamFlags{LargeBlocks: true, Embedded: true, Compressed: true}, []string{"-o", "xattr=sa"}},
		{"raised, equal blocks", "128k", "1m", zfs.StreamFlags{}, []string{"-o", "checksum=sha256"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p, q := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{})
			c := newCLI(t)
			ds, target := p.Create("d", append([]string{"-o", "recordsize=" + test.before}, test.create...)...), q.Dataset("d")
			from := ""
			for round, to := range []string{"a", "b", "c"} {
				for i, size := range []int64{700, 100_000, 131_072, 3_000_000} {
					name := string(rune('a' + i))
					p.Write(ds, "anew-"+name, size, uint64(round))
					f, err := os.OpenFile(p.Path(ds, "grows-"+name), os.O_CREATE|os.O_RDWR, 0o644)
					require.NoError(t, err)
					_, err = f.WriteAt(bytes.Repeat([]byte("text"), int(size)/4), size*int64(round)*2)
					require.NoError(t, err)
					require.NoError(t, f.Close())
				}
				churn(t, p, ds, uint64(round+1))
				p.Snapshot(ds, to)
				store(t, c, zfs.ReceiveSpec{Target: target}, stream(t, c, zfs.SendSpec{Dataset: ds, From: from, To: to, Flags: test.flags}))
				for _, base := range []string{from, ""} {
					left := digest(t, c, zfs.SendSpec{Dataset: ds, From: base, To: to, Flags: test.flags.ForDigest()})
					right := digest(t, c, zfs.SendSpec{Dataset: target, From: base, To: to, Flags: test.flags.ForDigest()})
					if base != "" { // other blocks may be zeroed: the digests of the whole snapshots decide
						left, right = left[:32], right[:32]
					}
					require.Equal(t, left, right, "%s to %s", base, to)
				}
				from = "@" + to
				p.ZFS("set", "recordsize="+test.after, ds)
			}
		})
	}
}

// TestContentDigestFindsFreedBlocks has a copy lose data, as after two changes of roles with another
// recordsize: zfs receive frees a file of one block whose block size differs, but the increment holds
// only what changed (openzfs#18663). It expects that the digests of the increments differ in what they
// zero, although they hold the same data, and that the block sizes differed before.
func TestContentDigestFindsFreedBlocks(t *testing.T) {
	t.Parallel()
	for _, change := range []string{"file", "neighbour"} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			p, q := zfstest.NewPool(t, zfstest.Options{}), zfstest.NewPool(t, zfstest.Options{})
			c := newCLI(t)
			a, b := p.Create("d", "-o", "recordsize=64k"), q.Dataset("d")
			whole := func(ds, from, to string) zfs.Contents {
				d, err := zfs.ContentDigest(bytes.NewReader(stream(t, c, zfs.SendSpec{Dataset: ds, From: from, To: to})), zfs.DigestRange{}, 0)
				require.NoError(t, err)
				return d
			}
			p.Write(a, "f", 128<<10, 1)
			p.Snapshot(a, "1")
			store(t, c, zfs.ReceiveSpec{Target: b}, stream(t, c, zfs.SendSpec{Dataset: a, To: "1"}))
			q.ZFS("set", "recordsize=128k", b)
			q.ZFS("mount", b)
			require.NoError(t, os.Truncate(q.Path(b, "f"), 0))
			q.Write(b, "f", 128<<10, 2)
			q.Snapshot(b, "2")
			p.ZFS("unmount", a)
			store(t, c, zfs.ReceiveSpec{Target: a}, stream(t, c, zfs.SendSpec{Dataset: b, From: "@1", To: "2"}))
			require.True(t, whole(a, "@1", "2").SameContents(whole(b, "@1", "2")))
			require.NotEqual(t, whole(a, "", "2").BlockSizes, whole(b, "", "2").BlockSizes)
			p.ZFS("mount", a)
			if change == "file" {
				f, err := os.OpenFile(p.Path(a, "f"), os.O_WRONLY, 0)
				require.NoError(t, err)
				_, err = f.WriteAt([]byte("changed"), 0)
				require.NoError(t, err)
				require.NoError(t, f.Close())
			} else {
				p.Write(a, "g", 1000, 3)
			}
			p.Snapshot(a, "3")
			q.ZFS("unmount", b)
			store(t, c, zfs.ReceiveSpec{Target: b}, stream(t, c, zfs.SendSpec{Dataset: a, From: "@2", To: "3"}))
			left, right := whole(a, "@2", "3"), whole(b, "@2", "3")
			require.Equal(t, left.Sum, right.Sum, "the increments hold the same data")
			require.False(t, left.SameContents(right))
			require.False(t, whole(a, "", "3").SameContents(whole(b, "", "3")), "the copy lost data")
		})
	}
}
