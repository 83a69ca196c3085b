package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/heal"
)

// healLab sets up the lab, and skips the test if OpenZFS cannot heal. TestZFSHealCopy
// checks the refusal of older versions.
func healLab(t *testing.T) {
	t.Helper()
	lab(t)
	if oldZFS(t) {
		t.Skip("needs OpenZFS 2.2")
	}
}

// damagedPool is a pool on one file. Its blocks can be damaged.
type damagedPool struct {
	pool, dir, image string
	damages          [][2]int64 // offset and length in image
}

func newDamagedPool(t *testing.T, pool string) *damagedPool {
	t.Helper()
	return newDamagedPoolOfSize(t, pool, 400<<20)
}

func newDamagedPoolOfSize(t *testing.T, pool string, size int64) *damagedPool {
	t.Helper()
	s := &damagedPool{pool: pool, dir: filepath.Join(poolDir(alphaPool), pool)}
	s.image = filepath.Join(s.dir, "image")
	require.NoError(t, os.MkdirAll(s.dir, 0o755))
	f, err := os.Create(s.image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	run(t, "zpool", "create", "-o", "ashift=12", "-O", "compression=off", "-m", "/"+pool, pool, s.image)
	t.Cleanup(func() { run(t, "zpool", "destroy", "-f", pool); _ = os.RemoveAll(s.dir) })
	return s
}

var dva = regexp.MustCompile(`\b0:([0-9a-f]+):([0-9a-f]+)\b`)

// mark registers all copies of block n of an object for damage. n starts at 0.
func (s *damagedPool) mark(t *testing.T, dataset string, object uint64, level string, n int) {
	t.Helper()
	s.marks(t, dataset, level, n, object)
}

// marks does the same as mark for several objects with one zdb, because zdb starts slowly.
func (s *damagedPool) marks(t *testing.T, dataset, level string, n int, objects ...uint64) {
	t.Helper()
	run(t, "zpool", "sync", s.pool)
	argv := []string{"zdb", "-dddddd", "-bbbbb", dataset}
	for _, o := range objects {
		argv = append(argv, strconv.FormatUint(o, 10))
	}
	left, marked := 0, 0 // blocks of this object to skip, objects that are done
	for line := range strings.Lines(run(t, argv...)) {
		if strings.HasPrefix(strings.TrimSpace(line), "Object ") { // the heading of each object
			left = n
			continue
		}
		if !strings.Contains(line, " "+level+" ") || !dva.MatchString(line) {
			continue
		}
		if left--; left != -1 {
			continue
		}
		marked++
		line, _, _ = strings.Cut(line, " cksum=")
		for _, m := range dva.FindAllStringSubmatch(line, -1) {
			at, err := strconv.ParseInt(m[1], 16, 64)
			require.NoError(t, err)
			size, err := strconv.ParseInt(m[2], 16, 64)
			require.NoError(t, err)
			s.damages = append(s.damages, [2]int64{at + 4<<20, min(size, 64<<10)})
		}
	}
	require.Equal(t, len(objects), marked, "%s: one of the objects %d has no block %d of level %s", dataset, objects, n, level)
}

// markFile marks the first block of a file.
func (s *damagedPool) markFile(t *testing.T, dataset, path string) {
	t.Helper()
	s.mark(t, dataset, objectNumber(t, path), "L0", 0)
}

// damage exports the pool, overwrites the marked blocks with junk, imports the pool and
// scrubs it.
func (s *damagedPool) damage(t *testing.T) {
	t.Helper()
	run(t, "zpool", "export", s.pool)
	f, err := os.OpenFile(s.image, os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, h := range s.damages {
		junk := make([]byte, h[1])
		_, _ = rand.Read(junk)
		_, err := f.WriteAt(junk, h[0])
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	s.damages = nil
	run(t, "zpool", "import", "-d", s.dir, s.pool)
	run(t, "zpool", "scrub", "-w", s.pool)
}

func fileDigest(t *testing.T, path string) string {
	return strings.Fields(run(t, "sha256sum", path))[0]
}

func healReport(t *testing.T, o cmdResult) (r heal.Report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o)
	return r
}

// TestZFSHeal heals files of plain, compressed and encrypted datasets, and a volume, in all
// snapshots. A dry run changes nothing, the snapshots remain unchanged, and the next
// incremental send succeeds.
func TestZFSHeal(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxsick")
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	plain, packed, locked, volume := s.pool+"/plain", s.pool+"/packed", s.pool+"/locked", s.pool+"/volume"
	zfsCmd(t, "create", plain)
	zfsCmd(t, "create", "-o", "compression=lz4", packed)
	key := filepath.Join(s.dir, "key")
	run(t, "dd", "if=/dev/urandom", "of="+key, "bs=32", "count=1", "status=none")
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, locked)
	zfsCmd(t, "create", "-V", "16M", "-o", "volblocksize=16k", volume)
	for _, d := range []string{plain, locked} {
		fill(t, d, "one", 1<<20)
	}
	var text strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&text, "line %d, %d\n", i, i*7919)
	}
	require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, packed), "one"), []byte(text.String()), 0o644))
	run(t, "dd", "if=/dev/urandom", "of="+volumeNode(t, volume), "bs=64k", "count=16", "conv=fsync", "status=none")
	zfsCmd(t, "snapshot", "-r", s.pool+"@a")
	fill(t, plain, "two", 1<<20)
	zfsCmd(t, "snapshot", "-r", s.pool+"@b")
	for _, d := range []string{plain, packed, locked, volume} {
		mustZxfer(t, "send", d, "beta:"+dst+"/"+filepath.Base(d))
	}
	at := func(d, f string) string { return filepath.Join(mountpoint(t, d), f) }
	sums := map[string]string{}
	for _, f := range []string{at(plain, "one"), at(plain, "two"), at(packed, "one"), at(locked, "one")} {
		sums[f] = fileDigest(t, f)
		s.markFile(t, strings.TrimPrefix(filepath.Dir(f), "/"), f)
	}
	device := volumeDigest(t, volume+"@a")
	s.mark(t, volume, 1, "L0", 3)
	s.damage(t)
	// While the key is not loaded, ZFS lists no damage of this dataset.
	args := []string{s.pool, "beta:" + dst}
	list := func() string {
		return zfsCmd(t, "list", "-H", "-r", "-t", "all", "-o", "name,guid,referenced,inconsistent", s.pool, dst) + run(t, "zpool", "status", s.pool)
	}
	before := list()
	require.Contains(t, mustZxfer(t, "doctor", "--quick", "--only", "pools").stdout, "zxfer heal -n "+s.pool+" HOST:COPY")
	o := zxfer(t, append([]string{"heal", "-n"}, args...)...)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "zxfer heal "+locked)
	o = mustZxfer(t, "heal", "-n", locked, "beta:"+dst+"/locked")
	require.Contains(t, o.stdout, locked+": would be healed from beta:"+dst+"/locked")
	require.Equal(t, before, list())
	mustZxfer(t, "heal", locked, "beta:"+dst+"/locked")
	zfsCmd(t, "load-key", locked)
	zfsCmd(t, "mount", locked)
	require.Equal(t, sums[at(locked, "one")], fileDigest(t, at(locked, "one")))

	before = zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name,guid,inconsistent", s.pool, dst)
	o = mustZxfer(t, append([]string{"heal", "--json"}, args...)...)
	r := healReport(t, o)
	require.Equal(t, "done", r.Outcome)
	require.NotEmpty(t, r.Objects)
	for _, thing := range r.Objects {
		require.Equal(t, heal.Healed, thing.Outcome, thing)
	}
	for f, want := range sums {
		require.Equal(t, want, fileDigest(t, f), f)
	}
	require.Equal(t, sums[at(plain, "one")], fileDigest(t, at(plain, ".zfs/snapshot/a/one")))
	for _, v := range []string{"@a", "@b"} {
		require.Equal(t, device, volumeDigest(t, volume+v))
	}
	require.Equal(t, before, zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name,guid,inconsistent", s.pool, dst))
	require.Contains(t, run(t, "zpool", "status", s.pool), "No known data errors")
	require.Contains(t, mustZxfer(t, append([]string{"heal"}, args...)...).stdout, "no known errors")
	zfsCmd(t, "snapshot", plain+"@c")
	mustZxfer(t, "send", plain, "beta:"+dst+"/plain")
}

// TestZFSHealCopy heals a copy from its source with a job file. ZFS does not list damage
// that only an older snapshot has, so the heal must not report success.
func TestZFSHealCopy(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	s := newDamagedPool(t, "zxcopy")
	zfsCmd(t, "create", "-o", "recordsize=128k", src)
	fill(t, src, "old", 300<<10)
	zfsCmd(t, "snapshot", src+"@a")
	fill(t, src, "new", 1<<20)
	require.NoError(t, os.Remove(filepath.Join(mountpoint(t, src), "old")))
	zfsCmd(t, "snapshot", src+"@b")
	copied := s.pool + "/copy"
	mustZxfer(t, "send", src, copied)
	zfsCmd(t, "mount", copied)
	s.markFile(t, copied, filepath.Join(mountpoint(t, copied), "new"))
	s.mark(t, copied+"@a", objectNumber(t, filepath.Join(mountpoint(t, copied), ".zfs/snapshot/a/old")), "L0", 0)
	run(t, "umount", copied+"@a")
	zfsCmd(t, "unmount", copied)
	s.damage(t)
	zfsCmd(t, "mount", copied)

	file := filepath.Join(s.dir, "job.toml")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf("[[job]]\nname = \"j\"\nsource = %q\n[job.snapshots]\nadopt = [\"*\"]\n[[job.target]]\nname = \"t\"\nto = %q\n", src, copied)), 0o600))
	o := zxfer(t, "heal", "--config", file, s.pool)
	if oldZFS(t) {
		require.Equal(t, 3, o.code, o)
		require.Contains(t, o.stdout, "cannot heal blocks; version 2.2 and later can")
		return
	}
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "found 1 error that ZFS does not list")
	require.Regexp(t, `  healed      \S+/new\n`, o.stdout)
	require.Equal(t, fileDigest(t, filepath.Join(mountpoint(t, src), "new")), fileDigest(t, filepath.Join(mountpoint(t, copied), "new")))
	require.NotContains(t, zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name", s.pool, src), "zxfer-heal")
}

// oldZFS reports whether the guest has OpenZFS 2.1. Its kernel is also slower.
func oldZFS(t *testing.T) bool {
	t.Helper()
	return strings.HasPrefix(run(t, "cat", "/sys/module/zfs/version"), "2.1.")
}

// objectNumber returns the number of a file's object, which is its inode number.
func objectNumber(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	require.NoError(t, syscall.Lstat(path, &st))
	return st.Ino
}
