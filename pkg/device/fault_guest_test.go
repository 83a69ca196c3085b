package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/device/devicetest"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
)

// failingDevice maps a device whose count sectors from first on fail.
func failingDevice(t *testing.T, dev string, sectors, first, count int64) string {
	t.Helper()
	return dmDevice(t, fmt.Sprintf("0 %d linear %s 0\n%d %d error\n%d %d linear %s %d",
		first, dev, first, count, first+count, sectors-first-count, dev, first+count))
}

// TestUnreadableSectors expects that unreadable sectors stop a copy. With SkipErrors exactly these
// sectors are zeros, and ddrescue can read their list.
func TestUnreadableSectors(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := devicetest.Loop(t, 4*mib, 512)
	want := noise(4 * mib)
	require.NoError(t, os.WriteFile(dev, want, 0))
	devicetest.Run(t, "sync")
	f := mustInspect(t, failingDevice(t, dev, 8192, 2051, 3))
	require.Equal(t, KindDM, f.Kind)
	src, err := OpenSource(context.Background(), f, false)
	require.NoError(t, err)
	p := AlignedBuffer(int(mib))
	_, err = src.ReadAt(p, 0)
	require.NoError(t, err)
	_, err = src.ReadAt(p, mib)
	var bad *ReadError
	require.ErrorAs(t, err, &bad)
	require.ErrorIs(t, err, unix.EIO)
	require.Contains(t, fault.HintOf(err), "{{skip-errors}}")
	require.True(t, bad.Off <= 2051*512 && bad.Off+bad.Len >= 2054*512, "%+v", bad)
	require.NoError(t, src.Close())

	src, err = OpenSource(context.Background(), f, true)
	require.NoError(t, err)
	got := AlignedBuffer(int(4 * mib))
	for off := int64(0); off < 4*mib; off += mib {
		_, err := src.ReadAt(got[off:off+mib], off)
		require.NoError(t, err)
	}
	clear(want[2051*512 : 2054*512])
	require.True(t, bytes.Equal(want, got))
	require.Equal(t, []Range{{2051 * 512, 3 * 512}}, src.BadRanges())

	var b strings.Builder
	require.NoError(t, WriteMapfile(&b, src.Size(), src.BadRanges()))
	require.NoError(t, src.Close())
	list := filepath.Join(devicetest.Scratch(t), "map")
	require.NoError(t, os.WriteFile(list, []byte(b.String()), 0o600))
	require.Equal(t, "2051\n2052\n2053", devicetest.Run(t, "ddrescuelog", "--list-blocks=-", "--block-size=512", list))
	require.Contains(t, devicetest.Run(t, "ddrescuelog", "--show-status", list), "bad-sector:     1536 B")
}

// TestFailedWritesAreReported expects that a failed write is reported by the next sync at the
// latest, and by every later sync.
func TestFailedWritesAreReported(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := devicetest.Loop(t, 4*mib, 512)
	for _, buffered := range []bool{false, true} {
		t.Run(fmt.Sprintf("buffered %v", buffered), func(t *testing.T) {
			f := mustInspect(t, failingDevice(t, dev, 8192, 4096, 8))
			target, err := OpenTarget(context.Background(), f, 4*mib, false)
			require.NoError(t, err)
			require.NoError(t, target.setDirect(!buffered))
			_, err = target.WriteAt(noise(mib), 0)
			require.NoError(t, err)
			require.NoError(t, target.Sync())
			_, werr := target.WriteAt(noise(mib), 2*mib)
			serr := target.Sync()
			require.ErrorIs(t, errors.Join(werr, serr), unix.EIO)
			if serr != nil {
				require.Equal(t, serr, target.Sync())
				require.Error(t, target.Commit())
			}
			require.ErrorIs(t, errors.Join(target.Zero(2*mib, mib), target.Sync()), unix.EIO)
			require.NoError(t, target.Close())
		})
	}
}

// TestFlakeyTarget uses a device that drops all writes for a while, and expects that unsynced
// blocks do not count as stored.
func TestFlakeyTarget(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := devicetest.Loop(t, 4*mib, 512)
	flakey := dmDevice(t, fmt.Sprintf("0 8192 flakey %s 0 0 60 1 error_writes", dev))
	target, err := OpenTarget(context.Background(), mustInspect(t, flakey), 4*mib, false)
	require.NoError(t, err)
	_, err = target.WriteAt(noise(mib), mib)
	require.ErrorIs(t, err, unix.EIO)
	require.ErrorIs(t, target.Zero(0, mib), unix.EIO)
	require.NoError(t, target.Close())
	require.True(t, mustInspect(t, dev).Busy)
}

// TestFullFileSystem expects that a copy to a full file system is refused before any write if space
// is allocated first, and that no file is left.
func TestFullFileSystem(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	dev := devicetest.Loop(t, 16*mib, 512)
	mkfs(t, dev)
	dir := mount(t, dev)
	name := filepath.Join(dir, "image")
	f := mustInspect(t, name)
	require.Equal(t, KindMissing, f.Kind)
	require.Equal(t, "ext", f.FilesystemType)
	src := source(t, 64*mib)
	require.Equal(t, []string{"target-no-space"}, ids(checkTarget(src, f, Allow{}), finding.Fail))
	require.Equal(t, []string{"target-no-space"}, ids(checkTarget(src, f, Allow{Sparse: true}), finding.Warn))
	_, err := OpenTarget(context.Background(), f, 64*mib, false)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.NoFileExists(t, name)

	target, err := OpenTarget(context.Background(), f, 64*mib, true)
	require.NoError(t, err)
	for off := int64(0); off < 64*mib && err == nil; off += mib {
		_, err = target.WriteAt(noise(mib), off)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Contains(t, fault.HintOf(err), "run the same command again")
	require.NoError(t, target.Close())
}

// TestLVSnapshot expects that a mounted file system is frozen and copied consistently. The snapshot
// is removed.
func TestLVSnapshot(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	pv := devicetest.Loop(t, 96*mib, 512)
	devicetest.Run(t, "vgcreate", "--quiet", "zx-snap", pv)
	runCleanup(t, "vgremove", "--force", "--yes", "zx-snap")
	devicetest.Run(t, "lvcreate", "--quiet", "--yes", "--size", "32m", "--name", "data-1", "zx-snap")
	dev := "/dev/zx-snap/data-1"
	mkfs(t, dev)
	dir := mount(t, dev)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "before"), noise(mib), 0o600))

	f := mustInspect(t, dev)
	require.Equal(t, KindLVM, f.Kind)
	require.Equal(t, "zx-snap/data-1", f.Label)
	warnings := checkSource(f)
	require.Equal(t, []string{"source-mounted"}, ids(warnings, finding.Warn))
	require.Contains(t, warnings[0].Remedy, "{{lvm-snapshot ")

	s, err := SnapshotLV(context.Background(), f, "8m")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "after"), noise(mib), 0o600))
	devicetest.Run(t, "sync")
	snap := mustInspect(t, s.Path)
	require.Equal(t, f.Size, snap.Size)
	require.Empty(t, checkSource(snap))
	src, err := OpenSource(context.Background(), snap, false)
	require.NoError(t, err)
	name := filepath.Join(devicetest.Scratch(t), "copy")
	target, err := OpenTarget(context.Background(), mustInspect(t, name), snap.Size, false)
	require.NoError(t, err)
	p := AlignedBuffer(int(mib))
	for off := int64(0); off < snap.Size; off += mib {
		_, err := src.ReadAt(p, off)
		require.NoError(t, err)
		_, err = target.WriteAt(p, off)
		require.NoError(t, err)
	}
	require.NoError(t, target.Commit())
	require.NoError(t, errors.Join(target.Close(), src.Close()))
	require.NoError(t, s.Intact(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, s.Remove(ctx), "also after an aborted copy")
	require.Equal(t, "data-1", devicetest.Run(t, "lvs", "--noheadings", "-o", "lv_name", "zx-snap"))

	back := mount(t, name, "-o", "loop")
	got, err := os.ReadFile(filepath.Join(back, "before"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(noise(mib), got))
	require.NoFileExists(t, filepath.Join(back, "after"))
}

// TestLVSnapshotFailures expects that an overflowed snapshot is reported as invalid. A failed
// creation leaves nothing.
func TestLVSnapshotFailures(t *testing.T) { //nolint:paralleltest // devices are the machine's
	guest(t)
	pv := devicetest.Loop(t, 96*mib, 512)
	devicetest.Run(t, "vgcreate", "--quiet", "zxover", pv)
	runCleanup(t, "vgremove", "--force", "--yes", "zxover")
	devicetest.Run(t, "lvcreate", "--quiet", "--yes", "--size", "64m", "--name", "data", "zxover")
	f := mustInspect(t, "/dev/zxover/data")
	for _, size := range []string{"", "-5G", "5X", "1G; true", "--yes", "10%FOO"} {
		_, err := SnapshotLV(context.Background(), f, size)
		require.Equal(t, fault.Usage, fault.ClassOf(err), "%q: %v", size, err)
	}
	_, err := SnapshotLV(context.Background(), source(t, mib), "8m")
	require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
	_, err = SnapshotLV(context.Background(), f, "40m") // of 28 free
	require.ErrorContains(t, err, "lvcreate")
	require.Equal(t, "data", devicetest.Run(t, "lvs", "--noheadings", "-o", "lv_name", "zxover"))

	s, err := SnapshotLV(context.Background(), f, "4m")
	require.NoError(t, err)
	require.NoError(t, s.Intact(context.Background()))
	require.NoError(t, exec.Command("dd", "if=/dev/urandom", "of=/dev/zxover/data", "bs=1M", "count=16", "conv=fsync").Run())
	err = s.Intact(context.Background())
	require.ErrorContains(t, err, "overflowed")
	require.Contains(t, fault.HintOf(err), "{{lvm-snapshot}}")
	require.NoError(t, s.Remove(context.Background()))
}
