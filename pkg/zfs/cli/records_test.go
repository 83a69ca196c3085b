package cli_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// sent returns the output of zfs send.
func sent(t testing.TB, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("zfs", append([]string{"send"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "zfs send %q: %s", args, stderr.String())
	return out
}

// plannedReceive returns a receive plan that matches the BEGIN records of a stream.
func plannedReceive(t testing.TB, b []byte) zfs.ReceiveSpec {
	t.Helper()
	spec := zfs.ReceiveSpec{Target: "vault/a"}
	for s := zfs.NewStreamReader(bytes.NewReader(b)); ; {
		r, err := s.Next()
		if err == io.EOF {
			return spec
		}
		require.NoError(t, err)
		if r.Type != zfs.RecordBegin || r.ToGUID() == 0 {
			continue
		}
		a := &spec.Arrival
		if len(a.Snapshots) == 0 {
			begin := zfstest.Record{Header: [zfs.RecordSize]byte(r.Header)}
			a.Base, a.Raw = r.FromGUID(), begin.HasFeatures(zfstest.FeatureRaw)
			a.Resumed, a.Volume = begin.HasFeatures(zfstest.FeatureResuming), begin.Objset() == 3
			if begin.IsClone() {
				spec.Origin = "vault/origin@a"
			}
		}
		_, name, _ := strings.Cut(r.ToName(), "@")
		a.Snapshots = append(a.Snapshots, zfs.SnapshotID{Name: name, GUID: r.ToGUID()})
	}
}

// gatedRecords sends a stream of zfs send through the gate. It returns the number of records of each
// type, and whether the gate refused extended attributes that are sent as embedded data.
func gatedRecords(t testing.TB, name string, b []byte) (map[zfs.RecordType]int, bool) {
	t.Helper()
	g, err := zfs.NewGate(plannedReceive(t, b))
	require.NoError(t, err)
	lossy := false
	for piece := range slices.Chunk(b, 100_000) {
		if err := g.Check(piece); err != nil {
			require.ErrorContains(t, err, "extended attributes as embedded data", name)
			lossy = true
			break
		}
	}
	types := map[zfs.RecordType]int{}
	for s := zfs.NewStreamReader(bytes.NewReader(b)); ; {
		r, err := s.Next()
		if err == io.EOF {
			return types, lossy
		}
		require.NoError(t, err)
		types[r.Type]++
	}
}

// changer makes changes to a mounted filesystem that depend only on a seed.
type changer struct {
	t   testing.TB
	dir string
	r   *rand.Rand
	n   int // files created so far
}

// data returns bytes that are mostly zeros, so that captures remain small.
func (c *changer) data(size int) []byte {
	b := make([]byte, size)
	rare := 64
	if c.r.IntN(8) == 0 {
		rare = 8
	}
	for i := range b {
		if i/16%rare == 0 {
			b[i] = byte(c.r.Uint32())
		}
	}
	return b
}

// files returns the regular files.
func (c *changer) files() []string {
	all, err := filepath.Glob(filepath.Join(c.dir, "*", "f*"))
	require.NoError(c.t, err)
	return all
}

// change makes one change.
func (c *changer) change() {
	c.t.Helper()
	all := c.files()
	if len(all) == 0 || c.r.IntN(4) == 0 {
		c.create()
		return
	}
	name := all[c.r.IntN(len(all))]
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(c.t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(c.t, err)
	size := info.Size()
	switch c.r.IntN(8) {
	case 0:
		require.NoError(c.t, os.Remove(name))
	case 1:
		require.NoError(c.t, f.Truncate(c.r.Int64N(2*size+1)))
	case 2:
		_, err := f.WriteAt(c.data(1+c.r.IntN(40_000)), c.r.Int64N(size+200_000))
		require.NoError(c.t, err)
	case 3:
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, c.r.Int64N(size+1), 1+c.r.Int64N(size+1))
	case 4, 5:
		c.attributes(name)
	case 6:
		_, err := f.WriteAt(make([]byte, 300_000), c.r.Int64N(size+1)) // ZFS stores it as a hole
		require.NoError(c.t, err)
	case 7:
		require.NoError(c.t, f.Chmod(0o600|os.FileMode(c.r.IntN(0o100))))
	}
}

// create creates a file, usually a small one.
func (c *changer) create() {
	dir := filepath.Join(c.dir, fmt.Sprintf("d%d", c.r.IntN(4)))
	require.NoError(c.t, os.MkdirAll(dir, 0o755))
	c.n++
	name := filepath.Join(dir, fmt.Sprintf("f%04d", c.n))
	size := c.r.IntN(3000)
	switch c.r.IntN(12) {
	case 0:
		size = c.r.IntN(1 << 20)
	case 1:
		size = 0
	}
	f, err := os.Create(name)
	require.NoError(c.t, err)
	defer f.Close()
	at := int64(0)
	if c.r.IntN(6) == 0 {
		at = c.r.Int64N(1 << 33) // sparse
	}
	_, err = f.WriteAt(c.data(size), at)
	require.NoError(c.t, err)
	if c.r.IntN(4) == 0 {
		c.attributes(name)
	}
	if c.r.IntN(6) == 0 {
		require.NoError(c.t, os.Symlink(strings.Repeat("link/", 20), filepath.Join(dir, fmt.Sprintf("l%04d", c.n))))
	}
}

// attributes sets or removes extended attributes, so that spill blocks appear and disappear.
func (c *changer) attributes(name string) {
	for i := range 6 {
		key := fmt.Sprintf("user.a%d", i)
		if c.r.IntN(3) == 0 {
			_ = unix.Removexattr(name, key)
		} else {
			require.NoError(c.t, unix.Setxattr(name, key, bytes.Repeat([]byte{byte('a' + i)}, 1+c.r.IntN(900)), 0))
		}
	}
}

// TestStreamsPassRecordRules sends datasets with holes, reused objects, extended attributes, large
// dnodes and large blocks in every way that zxfer does, and expects the gate to pass each stream. Only
// streams of zfs send -e, which zxfer resumes, may lose extended attributes (openzfs#18239).
// If ZXFER_CAPTURE names a directory, the test keeps small streams there.
func TestStreamsPassRecordRules(t *testing.T) {
	p := zfstest.NewPool(t, zfstest.Options{Size: 1 << 30, Create: []string{"-O", "compression=lz4", "-O", "xattr=sa"}})
	rounds, changes := 4, 100
	if testenv.Long() {
		rounds, changes = 12, 200
	}
	total := map[zfs.RecordType]int{}
	var refused []string
	check := func(args ...string) []byte {
		t.Helper()
		b := sent(t, args...)
		types, lossy := gatedRecords(t, fmt.Sprint(args), b)
		for typ, n := range types {
			total[typ] += n
		}
		if lossy {
			refused = append(refused, fmt.Sprint(args))
		}
		return b
	}
	for i, kind := range []struct {
		name   string
		create []string
		keyed  bool
		flags  [][]string
	}{
		{"new", []string{"-o", "dnodesize=auto", "-o", "recordsize=1m"}, false, [][]string{nil, {"-Lec"}, {"-e"}, {"-c"}, {"-L"}, {"-Le"}}},
		{"old", []string{"-o", "dnodesize=legacy", "-o", "recordsize=4k", "-o", "xattr=on"}, false, [][]string{nil, {"-Lec"}}},
		{"dedup", []string{"-o", "dedup=on", "-o", "checksum=sha256", "-o", "dnodesize=1k", "-o", "copies=2"}, false, [][]string{nil, {"-Lec"}}},
		{"keyed", []string{"-o", "dnodesize=auto"}, true, [][]string{{"-w"}, nil}},
	} {
		var ds string
		if kind.keyed {
			ds, _ = p.CreateEncrypted(kind.name, kind.create...)
		} else {
			ds = p.Create(kind.name, kind.create...)
		}
		c := &changer{t: t, dir: p.Path(ds, ""), r: rand.New(rand.NewPCG(uint64(i), 1))}
		for round := range rounds {
			for range changes {
				c.change()
			}
			if round == rounds/2 { // free most objects, and reuse them
				for _, f := range c.files() {
					if c.r.IntN(5) > 0 {
						require.NoError(t, os.Remove(f))
					}
				}
			}
			p.Snapshot(ds, fmt.Sprint("s", round))
			for _, flags := range kind.flags {
				check(append(slices.Clone(flags), fmt.Sprintf("%s@s%d", ds, round))...)
				if round > 0 {
					check(append(slices.Clone(flags), "-i", fmt.Sprintf("@s%d", round-1), fmt.Sprintf("%s@s%d", ds, round))...)
				}
			}
		}
		last := fmt.Sprintf("%s@s%d", ds, rounds-1)
		for _, flags := range kind.flags {
			check(append(slices.Clone(flags), "-I", "@s0", last)...)
			check(append(slices.Clone(flags), "-i", "@s0", last)...)
			resumed(t, p, check, append(slices.Clone(flags), last))
		}
		p.ZFS("clone", ds+"@s1", ds+"-clone")
		c.dir = p.Path(ds+"-clone", "")
		for range changes {
			c.change()
		}
		p.Snapshot(ds+"-clone", "k")
		for _, flags := range kind.flags {
			check(append(slices.Clone(flags), "-i", ds+"@s1", ds+"-clone@k")...)
		}
	}
	volumes(t, p, check)
	for _, typ := range []zfs.RecordType{zfs.RecordObject, zfs.RecordFreeObjects, zfs.RecordWrite, zfs.RecordFree, zfs.RecordSpill,
		zfs.RecordWriteEmbedded, zfs.RecordObjectRange} {
		require.Positive(t, total[typ], "no %s record was sent", typ)
	}
	t.Log(total, len(refused))
	for _, args := range refused {
		require.Regexp(t, `^\[(-e|-Le|-Lec|-t) `, args)
	}
	module, err := os.ReadFile("/sys/module/zfs/version")
	require.NoError(t, err)
	v, known := zfs.ParseRelease(strings.TrimSpace(string(module)))
	require.True(t, known)
	require.Equal(t, !v.Before(zfs.Release{2, 3, 0}), len(refused) > 0, "the defect began with 2.3: %v", refused)
}

// resumed interrupts the receive of a stream in seven places, or in three below the long level, and
// checks the rest of the stream.
func resumed(t *testing.T, p *zfstest.Pool, check func(...string) []byte, send []string) {
	t.Helper()
	b := check(send...)
	target := p.Dataset("resumed")
	step := 3 // near the start, in the middle, near the end
	if testenv.Long() {
		step = 1
	}
	for part := 1; part < 8; part += step {
		cmd := exec.Command("zfs", "receive", "-s", "-u", target)
		cmd.Stdin = bytes.NewReader(b[:len(b)/8*part])
		require.Error(t, cmd.Run())
		if exec.Command("zfs", "list", target).Run() != nil {
			continue // too little arrived
		}
		if token := p.Get(target, "receive_resume_token"); token != "-" {
			check("-t", token)
			p.ZFS("receive", "-A", target)
		}
	}
}

// volumes checks streams of volumes.
func volumes(t *testing.T, p *zfstest.Pool, check func(...string) []byte) {
	t.Helper()
	r := rand.New(rand.NewPCG(9, 9))
	for _, block := range []string{"8k", "64k"} {
		ds := p.Create("vol"+block, "-V", "64m", "-b", block)
		dev := zfstest.Device(t, ds)
		for round := range 4 {
			for range 60 {
				b := make([]byte, 512*(1+r.IntN(40)))
				if r.IntN(3) > 0 { // otherwise zeros
					b[r.IntN(len(b))] = 1
				}
				_, err := dev.WriteAt(b, 512*r.Int64N(64<<20/512-40))
				require.NoError(t, err)
			}
			require.NoError(t, dev.Sync())
			p.Snapshot(ds, fmt.Sprint("s", round))
			for _, flags := range [][]string{nil, {"-Lec"}} {
				check(append(slices.Clone(flags), fmt.Sprintf("%s@s%d", ds, round))...)
				if round > 0 {
					check(append(slices.Clone(flags), "-i", fmt.Sprintf("@s%d", round-1), fmt.Sprintf("%s@s%d", ds, round))...)
				}
			}
		}
		require.NoError(t, dev.Close())
	}
}

// TestCaptureStreams keeps one stream of each kind below the directory ZXFER_CAPTURE.
// testdata/README.md lists them.
func TestCaptureStreams(t *testing.T) {
	zfstest.Require(t)
	to := os.Getenv("ZXFER_CAPTURE")
	if to == "" {
		t.Skip("captures only: set ZXFER_CAPTURE=DIR")
	}
	p := zfstest.NewPool(t, zfstest.Options{Create: []string{"-O", "compression=lz4", "-O", "xattr=sa", "-O", "dnodesize=auto"}})
	capture := func(name string, args ...string) {
		t.Helper()
		b := sent(t, args...)
		types, _ := gatedRecords(t, name, b)
		t.Log(name, len(b), types)
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		require.NoError(t, err)
		_, err = z.Write(b)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		require.NoError(t, os.MkdirAll(to, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(to, name+".gz"), packed.Bytes(), 0o644))
	}
	ds := p.Create("files", "-o", "recordsize=1m")
	keyed, _ := p.CreateEncrypted("keyed")
	for i, d := range []string{ds, keyed} {
		c := &changer{t: t, dir: p.Path(d, ""), r: rand.New(rand.NewPCG(uint64(i), 2))}
		for _, snap := range []string{"a", "b", "c"} {
			for range 25 {
				c.change()
			}
			if snap == "b" {
				for _, f := range c.files()[:len(c.files())/2] {
					require.NoError(t, os.Remove(f))
				}
			}
			p.Snapshot(d, snap)
		}
	}
	for name, flags := range map[string][]string{"": nil, "-lec": {"-Lec"}} {
		capture("changes-full"+name, append(slices.Clone(flags), ds+"@a")...)
		capture("changes-incr"+name, append(slices.Clone(flags), "-i", "@a", ds+"@b")...)
	}
	capture("changes-range-lec", "-Lec", "-I", "@a", ds+"@c")
	capture("changes-full-raw", "-w", keyed+"@a")
	capture("changes-incr-raw", "-w", "-i", "@a", keyed+"@b")
	p.ZFS("clone", ds+"@b", ds+"-clone")
	require.NoError(t, os.WriteFile(p.Path(ds+"-clone", "one"), []byte("more"), 0o644))
	p.Snapshot(ds+"-clone", "k")
	capture("changes-clone", "-Lec", "-i", ds+"@b", ds+"-clone@k")

	b := sent(t, "-Lec", ds+"@a")
	cmd := exec.Command("zfs", "receive", "-s", "-u", p.Dataset("resumed"))
	cmd.Stdin = bytes.NewReader(b[:len(b)/2])
	require.Error(t, cmd.Run())
	capture("changes-resumed", "-t", p.Get(p.Dataset("resumed"), "receive_resume_token"))

	vol := p.Create("vol", "-V", "8m", "-b", "16k")
	dev := zfstest.Device(t, vol)
	_, err := dev.WriteAt(bytes.Repeat([]byte("volume"), 20_000), 1<<20)
	require.NoError(t, err)
	require.NoError(t, dev.Sync())
	p.Snapshot(vol, "a")
	_, err = dev.WriteAt(make([]byte, 64<<10), 1<<20)
	require.NoError(t, err)
	require.NoError(t, dev.Close())
	p.Snapshot(vol, "b")
	capture("changes-vol-full", "-Lec", vol+"@a")
	capture("changes-vol-incr", "-Lec", "-i", "@a", vol+"@b")
}
