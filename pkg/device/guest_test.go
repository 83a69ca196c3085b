package device

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/testenv"
)

// guest skips a test that creates, mounts and breaks devices, unless it runs as
// root in the guest. Such tests run sequentially.
func guest(t *testing.T) {
	t.Helper()
	testenv.NeedsRoot(t, "to make devices")
	if os.Getenv("ZXFER_GUEST") != "1" {
		t.Skip("needs devices that may be broken: scripts/guest")
	}
}

// runCleanup runs a command when the test ends. The command must succeed.
func runCleanup(t *testing.T, name string, args ...string) {
	t.Cleanup(func() { devicetest.Run(t, name, args...) })
}

// mount mounts a device until the test ends.
func mount(t *testing.T, dev string, args ...string) string {
	t.Helper()
	dir := devicetest.Scratch(t)
	devicetest.Run(t, "mount", append(args, dev, dir)...)
	runCleanup(t, "umount", dir)
	return dir
}

// mkfs creates an ext4 file system. Without lazy initialization, the kernel does
// not write to it in the background.
func mkfs(t *testing.T, args ...string) {
	t.Helper()
	devicetest.Run(t, "mkfs.ext4", append([]string{"-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"}, args...)...)
}

// partitionedDisk returns a disk with one DOS partition, 1 MiB to 9 MiB.
func partitionedDisk(t *testing.T, size int64) string {
	t.Helper()
	file := devicetest.Image(t, size)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(mbr(2048, 16384), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return devicetest.Attach(t, file, "--partscan")
}

// mbr returns a DOS partition table with one Linux partition.
func mbr(start, sectors uint32) []byte {
	b := make([]byte, 512)
	b[446+4] = 0x83
	for i := range 4 {
		b[446+8+i], b[446+12+i] = byte(start>>(8*i)), byte(sectors>>(8*i))
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}

func mustInspect(t *testing.T, path string) Facts {
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

// source returns a blank device to copy from.
func source(t *testing.T, size int64) Facts { return mustInspect(t, devicetest.Loop(t, size, 512)) }

// TestTargetsAreRefused expects each rule to refuse with its reason, without a changed byte. With
// the words from the refusal, the user's consent permits the copy.
func TestTargetsAreRefused(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	for _, c := range deviceSetups() {
		t.Run(c.name, func(t *testing.T) {
			src := source(t, 5*mib)
			dev := c.make(t)
			devicetest.Run(t, "sync")
			before := devicetest.Sum(t, dev)
			captureIf(t, dev)
			f := mustInspect(t, dev)
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
					require.Equal(t, c.want, ids(checkTarget(src, f, allow), finding.Fail), "no flag overrides it")
				}
			}
			require.Equal(t, before, devicetest.Sum(t, dev))
		})
	}
}

// TestSourceAsTarget expects a refusal if the target is the source or a part of it, under any name.
func TestSourceAsTarget(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	disk := partitionedDisk(t, 16*mib)
	file := devicetest.Image(t, 16*mib)
	onFile := devicetest.Attach(t, file)
	twice := devicetest.Attach(t, file)
	dm := dmDevice(t, fmt.Sprintf("0 8192 linear %s 0", disk))
	node := fmt.Sprintf("/dev/zx-node-%08x", rand.Uint32())
	t.Cleanup(func() { _ = os.Remove(node) })
	f := mustInspect(t, disk)
	devicetest.Run(t, "mknod", node, "b", fmt.Sprint(f.Major), fmt.Sprint(f.Minor))
	link := filepath.Join(devicetest.Scratch(t), "link")
	require.NoError(t, os.Symlink(disk, link))
	hard := file + ".hard"
	require.NoError(t, os.Link(file, hard))
	inside := devicetest.Loop(t, 32*mib, 512)
	mkfs(t, inside)
	within := filepath.Join(mount(t, inside), "image")
	for _, c := range []struct{ name, src, dst string }{
		{"itself", disk, disk},
		{"a symbolic link to it", disk, link},
		{"another device node", disk, node},
		{"its partition", disk, disk + "p1"},
		{"its disk", disk + "p1", disk},
		{"its container", disk, dm},
		{"its backing device", dm, disk},
		{"its image", onFile, file},
		{"a loop device of it", file, onFile},
		{"an image on it", inside, within},
		{"the same file", file, file},
		{"a hard link", file, hard},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, ids(checkTarget(mustInspect(t, c.src), mustInspect(t, c.dst), Allow{}), finding.Fail), "target-is-source")
		})
	}
	require.NotContains(t, ids(checkTarget(mustInspect(t, disk), mustInspect(t, onFile), Allow{}), finding.Fail), "target-is-source")
	require.NotEqual(t, onFile, twice)
}

// TestReplacedDevice expects a refusal if the device of a name is replaced before it is opened.
func TestReplacedDevice(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	first, second := devicetest.Image(t, 8*mib), devicetest.Image(t, 8*mib)
	dev := devicetest.Attach(t, first)
	f := mustInspect(t, dev)
	devicetest.Run(t, "losetup", "-d", dev)
	devicetest.Run(t, "losetup", dev, second)
	before := devicetest.Sum(t, dev)
	_, err := OpenTarget(context.Background(), f, 4*mib, false)
	require.ErrorContains(t, err, "has changed since the copy was planned")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	_, err = OpenSource(context.Background(), f, false)
	require.ErrorContains(t, err, "disk sequence")
	require.Equal(t, before, devicetest.Sum(t, dev))
}

// TestTargetIsExclusive expects that while a target is open, no other program can claim it.
func TestTargetIsExclusive(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := devicetest.Loop(t, 16*mib, 512)
	mkfs(t, dev)
	f := mustInspect(t, dev)
	target, err := OpenTarget(context.Background(), f, 16*mib, false)
	require.NoError(t, err)
	require.Error(t, exec.Command("mount", dev, devicetest.Scratch(t)).Run())
	_, err = OpenTarget(context.Background(), f, 16*mib, false)
	require.ErrorContains(t, err, "in use")
	require.True(t, mustInspect(t, dev).Busy)
	require.NoError(t, target.Close())
	require.False(t, mustInspect(t, dev).Busy)
}

// TestDirectReadsAndWrites expects direct reads and writes to work with any sector size and any
// alignment, without changes to other bytes.
func TestDirectReadsAndWrites(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	for _, sector := range []int{512, 4096} {
		for _, size := range []int64{0, 1, 511, 512, 4096, mib + 1, 3*mib + 4097} {
			t.Run(fmt.Sprintf("%d bytes in sectors of %d", size, sector), func(t *testing.T) {
				const whole = 4 * mib
				dev := devicetest.Loop(t, whole, sector)
				f := mustInspect(t, dev)
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
				require.True(t, bytes.Equal(old[size:], all[size:]), "data beyond the copy is kept")
			})
		}
	}
}

func noise(n int64) []byte {
	b := AlignedBuffer(int(n))
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b) // never fails
	return b
}
