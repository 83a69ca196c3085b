package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/heal"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfstest"
)

// markMany marks the first n data blocks of an object for damage.
func (s *damagedPool) markMany(t *testing.T, dataset string, object uint64, n int) {
	t.Helper()
	run(t, "zpool", "sync", s.pool)
	marked := 0
	for line := range strings.Lines(run(t, "zdb", "-dddddd", "-bbbbb", dataset, strconv.FormatUint(object, 10))) {
		if marked == n {
			break
		}
		if !strings.Contains(line, " L0 ") || !dva.MatchString(line) {
			continue
		}
		marked++
		line, _, _ = strings.Cut(line, " cksum=")
		for _, m := range dva.FindAllStringSubmatch(line, -1) {
			at, err := strconv.ParseInt(m[1], 16, 64)
			require.NoError(t, err)
			s.damages = append(s.damages, [2]int64{at + 4<<20, 4096})
		}
	}
	require.Equal(t, n, marked, "%s: blocks of object %d", dataset, object)
}

// blockLab is a pool whose datasets have copies, and the contents of their files and volume.
type blockLab struct {
	*damagedPool
	copies string
	sums   map[string]string // by path; of a volume by its name
}

// newBlockLab creates datasets of each kind with a file or volume of 32 MiB in three snapshots, and
// copies them.
func newBlockLab(t *testing.T, pool string) *blockLab {
	t.Helper()
	_, dst := dataset(t)
	l := &blockLab{newDamagedPoolOfSize(t, pool, 1<<30), "beta:" + dst, map[string]string{}}
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	key := filepath.Join(l.dir, "key")
	run(t, "dd", "if=/dev/urandom", "of="+key, "bs=32", "count=1", "status=none")
	for name, options := range map[string][]string{
		"plain":  {"-o", "recordsize=16k"},
		"locked": {"-o", "recordsize=16k", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://" + key},
		"packed": {"-o", "recordsize=16k", "-o", "compression=lz4"},
		"large":  {"-o", "recordsize=1M"},
	} {
		zfsCmd(t, append(append([]string{"create"}, options...), pool+"/"+name)...)
		data := make([]byte, 32<<20)
		_, _ = rand.Read(data)
		if name == "packed" {
			for i := range data {
				data[i] &= 0x11 // compresses, but not into a block pointer
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, pool+"/"+name), "one"), data, 0o644))
	}
	volume := pool + "/volume"
	zfsCmd(t, "create", "-V", "32M", "-o", "volblocksize=16k", volume)
	run(t, "dd", "if=/dev/urandom", "of="+volumeNode(t, volume), "bs=1M", "count=32", "conv=fsync", "status=none")
	for _, snap := range []string{"a", "b", "c"} {
		zfsCmd(t, "snapshot", "-r", pool+"@"+snap)
		if snap == "a" {
			for _, d := range l.filesystems() {
				fill(t, d, "two", 1<<20)
			}
		}
	}
	for _, d := range append(l.filesystems(), volume) {
		mustZxfer(t, "send", d, l.copies+"/"+filepath.Base(d))
	}
	for _, d := range l.filesystems() {
		one := filepath.Join(mountpoint(t, d), "one")
		l.sums[one] = fileDigest(t, one)
	}
	l.sums[volume] = volumeDigest(t, volume+"@c")
	return l
}

func (l *blockLab) filesystems() (all []string) {
	for _, name := range []string{"plain", "locked", "packed", "large"} {
		all = append(all, l.pool+"/"+name)
	}
	return all
}

// damageBlocks damages n blocks of each dataset, or all blocks if it has fewer, and returns their
// numbers.
func (l *blockLab) damageBlocks(t *testing.T, n int) map[string]uint64 {
	t.Helper()
	damaged := map[string]uint64{}
	for _, d := range l.filesystems() {
		blocks := n
		if strings.HasSuffix(d, "/large") {
			blocks = min(n, 32)
		}
		l.markMany(t, d, objectNumber(t, filepath.Join(mountpoint(t, d), "one")), blocks)
		damaged[d] = uint64(blocks)
	}
	l.markMany(t, l.pool+"/volume", 1, n)
	damaged[l.pool+"/volume"] = uint64(n)
	l.damage(t)
	zfsCmd(t, "load-key", l.pool+"/locked")
	zfsCmd(t, "mount", l.pool+"/locked")
	return damaged
}

// requireHealed expects the original contents and no errors.
func (l *blockLab) requireHealed(t *testing.T) {
	t.Helper()
	for name, want := range l.sums {
		if strings.HasPrefix(name, "/") {
			require.Equal(t, want, fileDigest(t, name), name)
		} else {
			require.Equal(t, want, volumeDigest(t, name+"@c"), name)
		}
	}
	require.Contains(t, run(t, "zpool", "status", l.pool), "No known data errors")
}

// TestZFSHealBlocks damages one block, and then 1,000 blocks, of plain, encrypted and compressed
// datasets, of one with large blocks and of a volume. It expects that heal sends only those blocks.
func TestZFSHealBlocks(t *testing.T) {
	healLab(t)
	l := newBlockLab(t, "zxblocks")
	before := listVersions(t, l.pool)
	for _, n := range []int{1, 1000} {
		damaged := l.damageBlocks(t, n)
		dry := healReport(t, mustZxfer(t, "heal", "-n", "--json", l.pool, l.copies))
		require.Len(t, dry.Datasets, len(damaged))
		for _, d := range dry.Datasets {
			require.Equal(t, damaged[d.Dataset], d.Blocks, d)
			require.Empty(t, d.Whole, d)
			require.Less(t, d.SendBytes, d.Bytes+1, d)
		}
		text := mustZxfer(t, "heal", "-n", l.pool, l.copies).stdout
		require.Regexp(t, `zxblocks/plain: would be healed from .* and `+humanize.Comma(int64(n))+` damaged blocks?, about .*, for which the copy's host reads about `, text)
		o := mustZxfer(t, "heal", "--json", l.pool, l.copies)
		r := healReport(t, o)
		for _, d := range r.Datasets {
			t.Logf("%s: %d damaged blocks: sent %d bytes, read %d bytes of about %d", d.Dataset, d.Blocks, d.Sent, d.Read, d.Bytes)
			require.True(t, d.Healed, d)
			require.Equal(t, damaged[d.Dataset], d.Blocks, o)
			size := uint64(16 << 10)
			if strings.HasSuffix(d.Dataset, "/large") {
				size = 1 << 20
			}
			require.Less(t, d.Sent, d.Blocks*(size+512)+8192, "%s: blocks and headers", d.Dataset)
			require.Greater(t, d.Read, d.Sent, d)
			if !strings.HasSuffix(d.Dataset, "/packed") {
				require.Greater(t, d.Read, uint64(32<<20), d)
			}
		}
		for _, thing := range r.Objects {
			require.Equal(t, heal.Healed, thing.Outcome, thing)
		}
		l.requireHealed(t)
		require.Equal(t, before, listVersions(t, l.pool))
	}
	require.NotContains(t, zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name", strings.TrimPrefix(l.copies, "beta:")), "zxfer-heal")
}

// TestZFSHealVolumeIncremental damages blocks of a volume that are newer than @a, and expects that the copy's
// host reads only the changes since @a.
func TestZFSHealVolumeIncremental(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxvolume")
	volume := s.pool + "/volume"
	zfsCmd(t, "create", "-V", "64M", "-o", "volblocksize=16k", volume)
	run(t, "dd", "if=/dev/urandom", "of="+volumeNode(t, volume), "bs=1M", "count=32", "conv=fsync", "status=none")
	zfsCmd(t, "snapshot", volume+"@a")
	run(t, "dd", "if=/dev/urandom", "of="+volumeNode(t, volume), "bs=1M", "count=1", "seek=40", "conv=fsync", "status=none")
	zfsCmd(t, "snapshot", volume+"@b")
	zfsCmd(t, "snapshot", volume+"@c")
	mustZxfer(t, "send", volume, "beta:"+dst)
	good := volumeDigest(t, volume+"@c")
	s.mark(t, volume, 1, "L0", 32*64+3)
	s.damage(t)
	r := healReport(t, mustZxfer(t, "heal", "--json", volume, "beta:"+dst))
	require.Len(t, r.Datasets, 1)
	d := r.Datasets[0]
	t.Logf("sent %d bytes, read %d bytes", d.Sent, d.Read)
	require.Equal(t, "a", d.Since)
	require.EqualValues(t, 1, d.Blocks)
	require.Less(t, d.Read, uint64(4<<20))
	require.Equal(t, good, volumeDigest(t, volume+"@c"))
	require.Contains(t, run(t, "zpool", "status", s.pool), "No known data errors")
}

// TestZFSHealForgedBlocks receives forged streams of damaged blocks. They change neither healthy nor
// damaged blocks, and the true stream then heals the block.
func TestZFSHealForgedBlocks(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxforged")
	src, snap := s.pool+"/ds", "zxfer-heal-forged"
	zfsCmd(t, "create", src)
	fill(t, src, "one", 1<<20)
	zfsCmd(t, "snapshot", src+"@"+snap)
	mustZxfer(t, "send", src, dst)
	one := filepath.Join(mountpoint(t, src), "one")
	object, good := objectNumber(t, one), fileDigest(t, one)
	stream := zfstest.ParseStream(t, []byte(run(t, "zfs", "send", "-L", "-c", dst+"@"+snap)))
	s.mark(t, src, object, "L0", 3)
	s.damage(t)

	tools := cli.New(nil)
	defer tools.Close()
	damage, err := tools.Damage(t.Context(), s.pool)
	require.NoError(t, err)
	require.Empty(t, damage.NoBlocks)
	damaged := zfs.Blocks{{Object: object, First: 3, Count: 1}}
	require.Equal(t, damaged, damage.BlocksOf(src).Data)
	all := zfs.Blocks{{Object: object, First: 0, Count: 8}}
	receive := func(b []byte, only zfs.Blocks) error {
		t.Helper()
		sink, err := tools.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: src, Corrective: true, Only: only,
			Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: snap, GUID: stream[0].ToGUID()}}}})
		require.NoError(t, err)
		if _, err := sink.Write(b); err != nil {
			return errors.Join(err, sink.Abort(err))
		}
		return sink.Commit(t.Context())
	}
	filtered := func(only zfs.Blocks) zfstest.Stream {
		t.Helper()
		b, err := io.ReadAll(zfs.NewBlockFilter(bytes.NewReader(stream.Bytes()), only))
		require.NoError(t, err)
		return zfstest.ParseStream(t, b)
	}
	forge := func(s zfstest.Stream) zfstest.Stream {
		for i := range s {
			if s[i].Type() == zfs.RecordWrite {
				s[i].Payload[100] ^= 0xff
			}
		}
		return s
	}
	// A refused block leaves its checksum in the kernel's copy of the block pointer (2.3.9), which then
	// refuses the true block and accepts the forged one. A heal takes a new snapshot for each try.
	forget := func() {
		t.Helper()
		run(t, "zpool", "export", s.pool)
		run(t, "zpool", "import", "-d", s.dir, s.pool)
		_, err = tools.Damage(t.Context(), s.pool)
		require.NoError(t, err)
	}
	require.ErrorContains(t, receive(filtered(all).Bytes(), damaged), "not requested")
	require.Error(t, receive(forge(filtered(damaged)).Bytes(), damaged), "the checksum of the damaged block")
	forget()
	b := filtered(damaged).Bytes()
	b[len(b)-1] ^= 1
	require.Error(t, receive(b, damaged), "the checksum of the stream")
	require.Error(t, receive(b[:len(b)-zfs.RecordSize], damaged), "a stream without its end")
	// The other forged blocks are healthy on the target. The kernel refuses the damaged one.
	require.Error(t, receive(forge(filtered(all)).Bytes(), all))
	require.NoError(t, receive(forge(filtered(zfs.Blocks{{Object: object, First: 0, Count: 3}})).Bytes(), all))
	forget()
	require.NoError(t, receive(filtered(damaged).Bytes(), damaged))
	forget()
	require.Equal(t, good, fileDigest(t, one))
	run(t, "zpool", "scrub", "-w", s.pool)
	require.Contains(t, run(t, "zpool", "status", s.pool), "No known data errors")
}
