package device

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
)

// guest skips a test that makes, mounts and breaks devices: it runs as root in
// the guest only, one after the other.
func guest(t *testing.T) {
	t.Helper()
	if os.Getenv("ZXFER_GUEST") != "1" {
		t.Skip("needs devices that may be broken: scripts/guest")
	}
}

// command runs one and returns what it prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
	return strings.TrimSpace(string(out))
}

// scratch is a directory on a tmpfs.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "blockdev-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// image is a file of size bytes, all hole.
func image(t *testing.T, size int64) string {
	t.Helper()
	name := filepath.Join(scratch(t), "image")
	require.NoError(t, os.WriteFile(name, nil, 0o600))
	require.NoError(t, os.Truncate(name, size))
	return name
}

// attach makes a loop device of a file.
func attach(t *testing.T, file string, args ...string) string {
	t.Helper()
	dev := command(t, "losetup", append(append([]string{"--find", "--show"}, args...), file)...)
	t.Cleanup(func() { _ = exec.Command("losetup", "-d", dev).Run() }) // it may be detached
	return dev
}

// loop makes a loop device of size bytes, with sectors of sector bytes.
func loop(t *testing.T, size int64, sector int) string {
	t.Helper()
	return attach(t, image(t, size), "--sector-size", strconv.Itoa(sector))
}

// undo runs a command when the test ends, and must succeed.
func undo(t *testing.T, name string, args ...string) {
	t.Cleanup(func() { command(t, name, args...) })
}

// mount mounts a device and unmounts it when the test ends.
func mount(t *testing.T, dev string, args ...string) string {
	t.Helper()
	dir := scratch(t)
	command(t, "mount", append(args, dev, dir)...)
	undo(t, "umount", dir)
	return dir
}

// mkfs makes an ext4 whose kernel writes nothing on its own once it is mounted:
// the inode tables and the journal are not left for later.
func mkfs(t *testing.T, args ...string) {
	t.Helper()
	command(t, "mkfs.ext4", append([]string{"-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, args...)...)
}

// partitioned is a disk with one DOS partition, 1 MiB to 9 MiB.
func partitioned(t *testing.T, size int64) string {
	t.Helper()
	file := image(t, size)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(mbr(2048, 16384), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return attach(t, file, "--partscan")
}

// mbr is a DOS partition table with one Linux partition.
func mbr(start, sectors uint32) []byte {
	b := make([]byte, 512)
	b[446+4] = 0x83
	for i := range 4 {
		b[446+8+i], b[446+12+i] = byte(start>>(8*i)), byte(sectors>>(8*i))
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}

// hash is that of all that a device or file holds.
func hash(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func look(t *testing.T, path string) Facts {
	t.Helper()
	f, err := Inspect(context.Background(), path)
	require.NoError(t, err)
	require.Empty(t, f.Unprobed)
	return f
}

func ids(problems []finding.Finding, s finding.Severity) []string {
	var out []string
	for _, p := range problems {
		if p.Severity == s && !slices.Contains(out, p.ID) {
			out = append(out, p.ID)
		}
	}
	return out
}

// source is a blank device to copy from.
func source(t *testing.T, size int64) Facts { return look(t, loop(t, size, 512)) }

// Each rule refuses with its reason, and neither looking, judging nor a
// refused open changes a byte. What consent permits, it does, with the words
// that the refusal names.
func TestTargetsAreRefused(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	for _, c := range setups() {
		t.Run(c.name, func(t *testing.T) {
			src := source(t, 5*mib)
			dev := c.make(t)
			command(t, "sync")
			before := hash(t, dev)
			captureIf(t, dev)
			f := look(t, dev)
			problems := checkTarget(src, f, Allow{})
			require.Equal(t, c.want, ids(problems, finding.Fail), "%+v", f)
			if c.held {
				_, err := OpenTarget(context.Background(), f, src.Size, false)
				require.Error(t, err)
				require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			}
			for _, p := range problems {
				require.NotEmpty(t, p.Remedy, p.ID)
				if p.Severity != finding.Fail {
					continue
				}
				_, words, _ := strings.Cut(p.Remedy, "{{overwrite}} {{confirm}} ")
				word, _, _ := strings.Cut(words, " (")
				require.Equal(t, p.Consent, word != "")
				allow := Allow{Overwrite: true, Confirm: word}
				if p.Consent {
					require.Empty(t, ids(checkTarget(src, f, allow), finding.Fail))
					allow.Confirm = "another"
					require.Equal(t, []string{"target-confirm"}, ids(checkTarget(src, f, allow), finding.Fail))
				} else {
					allow.Confirm = strconv.FormatInt(f.Size, 10)
					require.Equal(t, c.want, ids(checkTarget(src, f, allow), finding.Fail), "nothing overrides it")
				}
			}
			require.Equal(t, before, hash(t, dev))
		})
	}
}

// What is the source, in whole or in part, under whatever name.
func TestSourceAsTarget(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	disk := partitioned(t, 16*mib)
	file := image(t, 16*mib)
	onFile := attach(t, file)
	twice := attach(t, file)
	dm := mapped(t, fmt.Sprintf("0 8192 linear %s 0", disk))
	node := fmt.Sprintf("/dev/zx-node-%08x", rand.Uint32())
	t.Cleanup(func() { _ = os.Remove(node) })
	f := look(t, disk)
	command(t, "mknod", node, "b", fmt.Sprint(f.Major), fmt.Sprint(f.Minor))
	link := filepath.Join(scratch(t), "link")
	require.NoError(t, os.Symlink(disk, link))
	hard := file + ".hard"
	require.NoError(t, os.Link(file, hard))
	inside := loop(t, 32*mib, 512)
	mkfs(t, inside)
	within := filepath.Join(mount(t, inside), "image")
	for _, c := range []struct{ name, src, dst string }{
		{"itself", disk, disk},
		{"a symbolic link to it", disk, link},
		{"another node of it", disk, node},
		{"its partition", disk, disk + "p1"},
		{"its disk", disk + "p1", disk},
		{"what is made of it", disk, dm},
		{"what it is made of", dm, disk},
		{"its image", onFile, file},
		{"a device of it", file, onFile},
		{"an image on it", inside, within},
		{"the same file", file, file},
		{"a hard link", file, hard},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, ids(checkTarget(look(t, c.src), look(t, c.dst), Allow{}), finding.Fail), "target-is-source")
		})
	}
	require.NotContains(t, ids(checkTarget(look(t, disk), look(t, onFile), Allow{}), finding.Fail), "target-is-source")
	require.NotEqual(t, onFile, twice)
}

// The device under a name is another one by the time that it is opened.
func TestExchangedDevice(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	first, second := image(t, 8*mib), image(t, 8*mib)
	dev := attach(t, first)
	f := look(t, dev)
	command(t, "losetup", "-d", dev)
	command(t, "losetup", dev, second)
	before := hash(t, dev)
	_, err := OpenTarget(context.Background(), f, 4*mib, false)
	require.ErrorContains(t, err, "not what it was when the copy was planned")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	_, err = OpenSource(context.Background(), f, false)
	require.ErrorContains(t, err, "disk sequence")
	require.Equal(t, before, hash(t, dev))
}

// While a target is open nobody else can claim it.
func TestTargetIsHeld(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := loop(t, 16*mib, 512)
	mkfs(t, dev)
	f := look(t, dev)
	target, err := OpenTarget(context.Background(), f, 16*mib, false)
	require.NoError(t, err)
	require.Error(t, exec.Command("mount", dev, scratch(t)).Run())
	_, err = OpenTarget(context.Background(), f, 16*mib, false)
	require.ErrorContains(t, err, "in use")
	require.True(t, look(t, dev).Busy)
	require.NoError(t, target.Close())
	require.False(t, look(t, dev).Busy)
}

// What is read and written directly arrives, whatever the sectors and however
// it is cut; what is not written stays.
func TestDevicesHoldWhatIsWritten(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	for _, sector := range []int{512, 4096} {
		for _, size := range []int64{0, 1, 511, 512, 4096, mib + 1, 3*mib + 4097} {
			t.Run(fmt.Sprintf("%d bytes in sectors of %d", size, sector), func(t *testing.T) {
				const whole = 4 * mib
				dev := loop(t, whole, sector)
				f := look(t, dev)
				require.Equal(t, sector, f.LogicalSector)
				old := noise(whole)
				require.NoError(t, os.WriteFile(dev, old, 0))
				target, err := OpenTarget(context.Background(), f, size, false)
				require.NoError(t, err)
				require.True(t, target.direct.Load())
				want := noise(size)
				for off := int64(0); off < size; off += mib {
					p := AlignedBuffer(int(min(mib, size-off)))
					copy(p, want[off:])
					_, err := target.WriteAt(p, off)
					require.NoError(t, err)
				}
				if size > 8192 {
					clear(want[1000 : size-1000])
					require.NoError(t, target.Zero(1000, size-2000))
				}
				_, err = target.WriteAt([]byte{1}, size)
				require.ErrorContains(t, err, "beyond")
				require.NoError(t, target.Sync())
				require.NoError(t, target.DropCache())
				got := make([]byte, size)
				n, err := target.ReadAt(got, 0)
				require.NoError(t, err)
				require.EqualValues(t, size, n)
				require.True(t, bytes.Equal(want, got))
				require.NoError(t, target.Commit())
				require.NoError(t, target.Close())
				all, err := os.ReadFile(dev)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, all[:size]))
				require.True(t, bytes.Equal(old[size:], all[size:]), "what lies beyond the copy is kept")
			})
		}
	}
}

func noise(n int64) []byte {
	b := AlignedBuffer(int(n))
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b) // never fails
	return b
}
