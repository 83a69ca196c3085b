package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfstest"
)

// testVolume is a volume whose snapshots a test compares with copies.
type testVolume struct {
	t    *testing.T
	name string
	want map[string]string // by snapshot: the file with its contents
	dir  string
	seed uint64
}

const volumeSize = 48 << 20

func newTestVolume(t *testing.T, args ...string) *testVolume {
	t.Helper()
	src, _ := dataset(t)
	zfsCmd(t, append(append([]string{"create", "-s", "-V", strconv.Itoa(volumeSize), "-o", "volblocksize=16k"}, args...), src)...)
	return &testVolume{t: t, name: src, want: map[string]string{}, dir: devicetest.Scratch(t)}
}

// change opens the volume's device for f.
func (v *testVolume) change(f func(d *os.File)) {
	v.t.Helper()
	d := zfstest.Device(v.t, v.name)
	f(d)
	require.NoError(v.t, d.Sync())
	require.NoError(v.t, d.Close())
}

// write writes n random bytes at an offset.
func (v *testVolume) write(off, n int64) {
	v.t.Helper()
	v.seed++
	v.change(func(d *os.File) {
		_, err := io.CopyN(io.NewOffsetWriter(d, off), rand.NewChaCha8([32]byte{byte(v.seed), byte(v.seed >> 8)}), n)
		require.NoError(v.t, err)
	})
}

// discard unmaps a range.
func (v *testVolume) discard(off, n int64) {
	v.t.Helper()
	v.change(func(d *os.File) {
		run(v.t, "blkdiscard", "-o", strconv.FormatInt(off, 10), "-l", strconv.FormatInt(n, 10), d.Name())
	})
}

// snapshot takes a snapshot and keeps its contents.
func (v *testVolume) snapshot(name string) {
	v.t.Helper()
	zfsCmd(v.t, "snapshot", v.name+"@"+name)
	v.want[name] = filepath.Join(v.dir, name)
	v.change(func(d *os.File) {
		f, err := os.Create(v.want[name])
		require.NoError(v.t, err)
		_, err = io.Copy(f, d)
		require.NoError(v.t, err)
		require.NoError(v.t, f.Close())
	})
}

// requireHeld expects that a device or image file has the contents of a snapshot.
func (v *testVolume) requireHeld(target, name string) {
	v.t.Helper()
	info, err := os.Stat(v.want[name])
	require.NoError(v.t, err)
	run(v.t, "cmp", "-n", strconv.FormatInt(info.Size(), 10), v.want[name], target)
	if file, err := os.Stat(target); err == nil && file.Mode().IsRegular() {
		require.Equal(v.t, info.Size(), file.Size(), target)
	}
}

// fill gives the volume a filesystem-like start, data, and room.
func (v *testVolume) fill() {
	v.t.Helper()
	v.write(0, 3<<20)
	v.write(20<<20, 4<<20)
	v.write(volumeSize-(1<<20), 1<<20)
}

// TestZFSVolumeChanges copies a snapshot of a volume to an image file, a loop device and a device of
// device mapper, and then the changes: written and discarded blocks, also in the head.
func TestZFSVolumeChanges(t *testing.T) {
	lab(t)
	v := newTestVolume(t)
	v.fill()
	v.snapshot("a")
	v.write(4096, 9000)
	v.write(21<<20+512, 70000)
	v.write(33<<20, 1<<20)
	v.discard(22<<20, 1<<20)
	v.discard(1<<20, 256<<10)
	v.snapshot("b")
	v.discard(0, 20<<20)
	v.write(10<<20, 1<<20)
	v.snapshot("c")
	zfsCmd(t, "bookmark", v.name+"@b", v.name+"#b")
	targets := map[string]string{
		"image":  filepath.Join(devicetest.Scratch(t), "vm.raw"),
		"loop":   devicetest.Loop(t, volumeSize, 512),
		"larger": devicetest.Loop(t, volumeSize+(5<<20), 4096),
		"dm":     newLabDisk(t, "zxvolume", volumeSize).path(),
	}
	for name, target := range targets {
		t.Run(name, func(t *testing.T) {
			v := *v
			v.t = t
			end := "beta:" + target
			o := mustZxfer(t, "send", v.name+"@a", end)
			require.Contains(t, o.stdout, "full copy")
			require.Contains(t, o.stdout, "read back and verified")
			v.requireHeld(target, "a")
			o = mustZxfer(t, "send", "-n", v.name+"@b", end)
			require.Contains(t, o.stdout, "changes since @a")
			v.requireHeld(target, "a")
			r := devReport(t, mustZxfer(t, "send", "--json", v.name+"@b", end))
			require.Equal(t, "@a", r.Volume.Base)
			require.Less(t, r.Results[0].WireBytes, int64(3<<20), "only changes are sent")
			require.Positive(t, r.Results[0].Zeros)
			require.LessOrEqual(t, r.Results[0].Zeros, int64(2<<20), "holes of both snapshots are not zeroed again")
			v.requireHeld(target, "b")
			require.Contains(t, mustZxfer(t, "send", v.name+"@b", end).stdout, "up to date")
			o = mustZxfer(t, "send", "--verify", v.name, end)
			require.Contains(t, o.stdout, "changes since @b")
			require.Contains(t, o.stdout, "equal to the snapshot by XXH3")
			v.requireHeld(target, "c")
			mustZxfer(t, "dev", "--verify-only", v.name+"@c", end)
			o = zxfer(t, "dev", "--verify-only", v.name+"@b", end)
			require.Equal(t, 1, o.code, o)
			require.Contains(t, o.stderr, "differ")
			o = zxfer(t, "send", v.name+"@a", end)
			require.Equal(t, 3, o.code, "an earlier snapshot: %s", o)
			require.Contains(t, o.stderr, "no earlier snapshot or bookmark")
			requireNoLeftovers(t)
		})
	}
}

// TestZFSVolumeBases refuses changes whose incremental source the target does not hold, and lists the
// command for a full copy.
func TestZFSVolumeBases(t *testing.T) {
	lab(t)
	v := newTestVolume(t)
	v.fill()
	v.snapshot("a")
	v.write(5<<20, 1<<20)
	v.snapshot("b")
	dir := devicetest.Scratch(t)
	image, loop := filepath.Join(dir, "vm.raw"), devicetest.Loop(t, volumeSize, 512)
	for _, target := range []string{image, loop} {
		mustZxfer(t, "send", v.name+"@a", "beta:"+target)
		// Another program writes to the copy.
		writeNoise(t, target, 30<<20, 4096)
		o := zxfer(t, "send", v.name+"@b", "beta:"+target)
		require.Equal(t, 3, o.code, o)
		require.Contains(t, o.stderr, "no longer holds "+v.name+"@a")
		fields := strings.Fields(o.stderr)
		id := fields[len(fields)-1]
		for i, word := range fields {
			if word == "--confirm" {
				id = fields[i+1]
			}
		}
		mustZxfer(t, "dev", "--overwrite", "--confirm", id, v.name+"@b", "beta:"+target)
		v.requireHeld(target, "b")
	}
	// The bookmark of a destroyed snapshot is an incremental source.
	zfsCmd(t, "bookmark", v.name+"@b", v.name+"#old")
	v.discard(20<<20, 1<<20)
	v.snapshot("c")
	zfsCmd(t, "destroy", v.name+"@b")
	require.Contains(t, mustZxfer(t, "send", v.name, "beta:"+image).stdout, "changes since #old")
	v.requireHeld(image, "c")
	// Snapshots are identified by GUID, not by name.
	zfsCmd(t, "rollback", "-r", v.name+"@a")
	v.write(1<<20, 1<<20)
	v.snapshot("c")
	v.write(2<<20, 1<<20)
	v.snapshot("d")
	o := zxfer(t, "send", v.name+"@d", "beta:"+image)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "no earlier snapshot or bookmark")
	require.Contains(t, o.stderr, "zxfer dev --overwrite --confirm "+strconv.Itoa(volumeSize))
	// The volume grows and shrinks.
	mustZxfer(t, "dev", "--overwrite", "--confirm", strconv.Itoa(volumeSize), v.name+"@d", "beta:"+image)
	zfsCmd(t, "set", "volsize="+strconv.Itoa(volumeSize+(8<<20)), v.name)
	v.write(volumeSize+(1<<20), 1<<20)
	v.snapshot("e")
	mustZxfer(t, "send", v.name, "beta:"+image)
	v.requireHeld(image, "e")
	zfsCmd(t, "set", "volsize="+strconv.Itoa(volumeSize-(16<<20)), v.name)
	v.snapshot("f")
	mustZxfer(t, "send", v.name, "beta:"+image)
	v.requireHeld(image, "f")
	o = zxfer(t, "send", v.name+"@e", "beta:"+loop)
	require.Equal(t, 3, o.code, o)
	requireNoLeftovers(t)
}

// isRealSend reports whether a process sends, and does not only estimate.
func isRealSend(argv []string) bool { return isZFS("send")(argv) && !slices.Contains(argv, "-nvP") }

// TestZFSVolumeKilled kills zxfer and its agent during a full copy and during changes. The same
// command completes the copy. Until then, every other use of the target is refused.
func TestZFSVolumeKilled(t *testing.T) {
	lab(t)
	v := newTestVolume(t)
	v.fill()
	v.snapshot("a")
	v.write(4096, 8<<20)
	v.write(22<<20, 8<<20)
	v.discard(volumeSize-(1<<20), 1<<20)
	v.snapshot("b")
	v.write(0, 1<<20)
	v.snapshot("c")
	dir := devicetest.Scratch(t)
	image, loop := filepath.Join(dir, "vm.raw"), devicetest.Loop(t, volumeSize, 512)
	applying := func(target string) bool {
		if target == image {
			text, err := os.ReadFile(image + ".zxfer")
			return err == nil && bytes.Contains(text, []byte(`"applying"`))
		}
		found, err := filepath.Glob("/var/lib/zxfer/volume-*.json")
		require.NoError(t, err)
		for _, name := range found {
			if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(`"applying"`)) {
				return true
			}
		}
		return false
	}
	for _, target := range []string{image, loop} {
		for _, snapshot := range []string{"a", "b"} {
			args := []string{"send", "--bwlimit", "1MiB", "--buffer", "1MiB", "--retries", "0", v.name + "@" + snapshot, "beta:" + target}
			for _, victim := range []string{"zxfer", "agent", "zfs send"} {
				p := start(t, args...)
				require.Eventually(t, func() bool { return p.ended() || len(pidsOn(t, alphaPool, isRealSend)) > 0 && applying(target) }, testenv.Timeout(), 5*time.Millisecond)
				switch victim {
				case "zxfer":
					require.NoError(t, p.cmd.Process.Kill())
				case "agent":
					for _, pid := range pidsOn(t, betaPool, isAgent) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				default:
					for _, pid := range pidsOn(t, alphaPool, isRealSend) {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
				o := p.wait(t)
				require.NotEqual(t, 0, o.code, "%s: %s", victim, o)
				require.True(t, applying(target), "%s: %s", victim, o)
				requireNoLeftovers(t)
			}
			// Another snapshot is refused, and so is reading the copy.
			o := zxfer(t, "send", v.name+"@c", "beta:"+target)
			require.Equal(t, 3, o.code, o)
			o = zxfer(t, "dev", "beta:"+target, filepath.Join(dir, "back"))
			require.Equal(t, 3, o.code, o)
			require.Contains(t, o.stderr, "complete it first: zxfer send "+v.name+"@"+snapshot)
			require.NoFileExists(t, filepath.Join(dir, "back"))
			o = mustZxfer(t, "send", "-n", v.name+"@"+snapshot, "beta:"+target)
			require.Contains(t, o.stdout, "completes an interrupted copy")
			mustZxfer(t, "send", v.name+"@"+snapshot, "beta:"+target)
			require.False(t, applying(target))
			v.requireHeld(target, snapshot)
		}
	}
	// A program that writes to the head in between is detected.
	p := start(t, "send", "--bwlimit", "1MiB", "--buffer", "1MiB", v.name+"@c", "beta:"+loop)
	require.Eventually(t, func() bool { return p.ended() || len(pidsOn(t, alphaPool, isRealSend)) > 0 }, testenv.Timeout(), 5*time.Millisecond)
	_ = p.cmd.Process.Kill()
	p.wait(t)
	requireNoLeftovers(t)
	require.NoError(t, exec.Command("mkfs.ext4", "-q", "-F", loop).Run())
	o := zxfer(t, "send", v.name+"@c", "beta:"+loop)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "no longer holds")
}

// TestZFSVolumeRules refuses other targets and sources, and an encrypted volume without consent.
func TestZFSVolumeRules(t *testing.T) {
	lab(t)
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, bytes.Repeat([]byte("k"), 32), 0o600))
	v := newTestVolume(t, "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key)
	v.write(0, 1<<20)
	v.snapshot("a")
	image := filepath.Join(devicetest.Scratch(t), "vm.raw")
	refused := func(want string, args ...string) {
		t.Helper()
		o := zxfer(t, args...)
		require.Equal(t, 3, o.code, o)
		require.Contains(t, o.stderr, want)
		require.NoFileExists(t, image)
	}
	refused("is encrypted, but its copy", "send", v.name, "beta:"+image)
	zfsCmd(t, "create", alphaPool+"/zxnovolume")
	t.Cleanup(func() { cleanUp(alphaPool + "/zxnovolume") })
	refused("only a volume", "send", alphaPool+"/zxnovolume", "beta:"+image)
	o := mustZxfer(t, "send", "--decrypt", v.name, "beta:"+image)
	require.Contains(t, o.stdout+o.stderr, "is encrypted, but its copy is not")
	v.requireHeld(image, "a")
	info, err := os.Stat(image + ".zxfer")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	var record struct {
		State string
		Held  struct{ Dataset, Name, GUID string }
	}
	text, err := os.ReadFile(image + ".zxfer")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &record))
	require.Equal(t, "complete", record.State)
	require.Equal(t, guids(t, v.name)["a"], record.Held.GUID)
	// dev reads a complete copy, and its own copy deletes the record.
	back := filepath.Join(filepath.Dir(image), "back")
	mustZxfer(t, "dev", "beta:"+image, back)
	v.requireHeld(back, "a")
	mustZxfer(t, "dev", "--overwrite", "--confirm", strconv.Itoa(volumeSize), back, "beta:"+image)
	require.NoFileExists(t, image+".zxfer")
	require.NoError(t, os.Remove(image))
	zfsCmd(t, "unload-key", v.name)
	refused("is not loaded", "send", "--decrypt", v.name, "beta:"+image)
	zfsCmd(t, "load-key", v.name)
	other := filepath.Join(filepath.Dir(image), "other")
	require.NoError(t, os.WriteFile(other, []byte("data"), 0o600))
	refused("has another size than the volume", "dev", "--decrypt", "--overwrite", "--confirm", "4", v.name, "beta:"+other)
	refused("too small", "send", "--decrypt", v.name, "beta:"+devicetest.Loop(t, volumeSize-(1<<20), 512))
	refused("to destroy its contents", "send", "--decrypt", v.name, "beta:"+back)
	// A pull and a copy between two remote hosts work the same, also from a host without zxfer.
	mustZxfer(t, "send", "--decrypt", "alpha:"+v.name, image)
	v.requireHeld(image, "a")
	v.write(0, 4096)
	v.snapshot("b")
	agentlessAccount(t, "appliance", loginShell)
	require.Contains(t, mustZxfer(t, "send", "--decrypt", "appliance:"+v.name, image).stdout, "changes since @a, 16 KiB written")
	v.requireHeld(image, "b")
	v.write(3<<20, 4096)
	v.snapshot("c")
	mustZxfer(t, "send", "--decrypt", "--verify", "alpha:"+v.name, "beta:"+image)
	v.requireHeld(image, "c")
	o = zxfer(t, "send", "--decrypt", v.name, "appliance:"+image)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "zxfer cannot copy devices")
	requireNoLeftovers(t)
}

// TestZFSVolumeFaults copies to a disk that drops or fails writes, to a full file system, and over a
// lost connection. No failed copy counts as complete, and the same command completes it.
func TestZFSVolumeFaults(t *testing.T) {
	lab(t)
	v := newTestVolume(t)
	v.fill()
	v.snapshot("a")
	v.write(22<<20, 8<<20)
	v.snapshot("b")
	disk := newLabDisk(t, "zxvolfault", volumeSize)
	mustZxfer(t, "send", v.name+"@a", "beta:"+disk.path())
	for _, table := range []string{disk.dropWritesTable(), disk.errorTable()} {
		args := []string{"send", "--bwlimit", "2MiB", "--buffer", "1MiB", v.name + "@b", "beta:" + disk.path()}
		p := start(t, args...)
		require.Eventually(t, func() bool { return p.ended() || len(pidsOn(t, alphaPool, isRealSend)) > 0 }, testenv.Timeout(), 5*time.Millisecond)
		disk.setTable(table)
		o := p.wait(t)
		require.Contains(t, []int{1, 3}, o.code, o) // 3: the disk failed before the first write
		disk.setTable(disk.healthyTable())
		require.NotContains(t, o.stdout, "verified")
	}
	require.Contains(t, mustZxfer(t, "send", v.name+"@b", "beta:"+disk.path()).stdout, "read back and verified")
	v.requireHeld(disk.path(), "b")

	small := devicetest.Scratch(t)
	run(t, "mount", "-t", "tmpfs", "-o", "size=6m", "none", small)
	t.Cleanup(func() { _ = exec.Command("umount", small).Run() })
	image := filepath.Join(small, "vm.raw")
	o := zxfer(t, "send", v.name+"@a", "beta:"+image)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "no space left")
	require.Contains(t, o.stderr, "free space there, then run the same command again")
	run(t, "mount", "-o", "remount,size=64m", small)
	mustZxfer(t, "send", v.name+"@a", "beta:"+image)
	v.requireHeld(image, "a")

	p := start(t, "send", "--bwlimit", "2MiB", "--buffer", "1MiB", v.name+"@b", "beta:"+image)
	require.Eventually(t, func() bool { return p.ended() || len(pidsOn(t, alphaPool, isRealSend)) > 0 }, testenv.Timeout(), 5*time.Millisecond)
	for _, pid := range pidsOn(t, betaPool, isAgent) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	o = p.wait(t)
	require.Equal(t, 0, o.code, "the same run retries: %s", o)
	require.Contains(t, o.stdout, "try 2")
	v.requireHeld(image, "b")
	requireNoLeftovers(t)
}
