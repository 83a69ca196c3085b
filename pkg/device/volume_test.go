package device

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

const volumeTestSize = 5 * mib // larger than the head

func volumeSnapshotOf(name string, guid uint64, size int64) VolumeSnapshot {
	return VolumeSnapshot{Dataset: "tank/vm", Name: name, GUID: guid, Size: size, Block: 16 << 10}
}

// volumeChange writes fill to a range, or zeros if fill is 0.
type volumeChange struct {
	off, n int64
	fill   byte
}

// apply makes the changes in memory.
func applyChanges(image []byte, changes []volumeChange) []byte {
	image = bytes.Clone(image)
	for _, c := range changes {
		copy(image[c.off:], bytes.Repeat([]byte{c.fill}, int(c.n)))
	}
	return image
}

func (c volumeChange) to(v *VolumeTarget) error {
	if c.fill == 0 {
		return v.Zero(c.off, c.n)
	}
	_, err := v.WriteAt(bytes.Repeat([]byte{c.fill}, int(c.n)), c.off)
	return err
}

// copyVolume copies a snapshot to a file. changes must cover everything if base is zero.
func copyVolume(t *testing.T, path string, base, snapshot VolumeSnapshot, changes []volumeChange, allow Allow) error {
	t.Helper()
	v, err := OpenVolume(t.Context(), VolumeTask{Target: inspectFile(t, path), Base: base, Snapshot: snapshot, Allow: allow})
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := c.to(v); err != nil {
			return errors.Join(err, v.Abort())
		}
	}
	return v.Commit(t.Context())
}

// fullCopy are the changes of a full copy: everything is covered.
func fullCopy() []volumeChange {
	return []volumeChange{{0, 5000, 1}, {5000, mib, 0}, {mib + 5000, 2 * mib, 2}, {3*mib + 5000, volumeTestSize - 3*mib - 5000, 0}}
}

func someChanges() []volumeChange {
	return []volumeChange{{512, 1024, 3}, {8192, 4096, 0}, {2*mib - 512, 1024, 4}, {3 * mib, 70000, 0}, {3*mib + 70000, 100, 5}, {volumeTestSize - 512, 512, 6}}
}

// TestVolumeTarget copies a snapshot, changes, changes over zeros, and a larger and a smaller volume to
// an image file.
func TestVolumeTarget(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vm.raw")
	a, b := volumeSnapshotOf("a", 1, volumeTestSize), volumeSnapshotOf("b", 2, volumeTestSize)
	require.NoError(t, copyVolume(t, path, VolumeSnapshot{}, a, fullCopy(), Allow{}))
	image := applyChanges(make([]byte, volumeTestSize), fullCopy())
	holds := func(want VolumeSnapshot) {
		t.Helper()
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(image, got))
		require.Equal(t, &VolumeCopy{Held: want}, inspectFile(t, path).Volume)
	}
	holds(a)
	require.NoError(t, copyVolume(t, path, a, b, someChanges(), Allow{}))
	image = applyChanges(image, someChanges())
	holds(b)
	overlapping := []volumeChange{{0, volumeTestSize, 0}, {3 * mib, mib, 7}, {100, 5, 8}}
	c := volumeSnapshotOf("c", 3, volumeTestSize)
	require.NoError(t, copyVolume(t, path, b, c, overlapping, Allow{}))
	image = applyChanges(image, overlapping)
	holds(c)
	larger := volumeSnapshotOf("d", 4, volumeTestSize+longZeros+mib)
	require.NoError(t, copyVolume(t, path, c, larger, []volumeChange{{volumeTestSize + longZeros, 512, 1}}, Allow{}))
	image = applyChanges(append(image, make([]byte, longZeros+mib)...), []volumeChange{{volumeTestSize + longZeros, 512, 1}})
	holds(larger)
	smaller := volumeSnapshotOf("e", 5, mib)
	require.NoError(t, copyVolume(t, path, larger, smaller, nil, Allow{}))
	image = image[:mib]
	holds(smaller)
	grown := volumeSnapshotOf("f", 6, 3*mib)
	require.NoError(t, copyVolume(t, path, smaller, grown, []volumeChange{{2 * mib, 512, 1}}, Allow{}))
	image = applyChanges(append(bytes.Clone(image), make([]byte, 2*mib)...), []volumeChange{{2 * mib, 512, 1}})
	holds(grown)
	left, err := filepath.Glob(path + "*")
	require.NoError(t, err)
	require.Equal(t, []string{path, path + RecordSuffix}, left, "no temporary file remains")
}

// TestVolumeTargetKilled ends a copy after each change and each step of the commit, as kill -9 does.
// The file holds the old snapshot, or its record says that it is incomplete. The same copy completes
// it, also after a second interruption.
func TestVolumeTargetKilled(t *testing.T) {
	t.Parallel()
	needsWipefs(t)
	a, b, other := volumeSnapshotOf("a", 1, volumeTestSize), volumeSnapshotOf("b", 2, volumeTestSize+mib), volumeSnapshotOf("c", 3, volumeTestSize+mib)
	kinds := map[string]struct {
		base, to VolumeSnapshot
		changes  []volumeChange
		want     []byte
	}{
		"full":    {VolumeSnapshot{}, a, fullCopy(), applyChanges(make([]byte, volumeTestSize), fullCopy())},
		"changes": {a, b, someChanges(), append(applyChanges(applyChanges(make([]byte, volumeTestSize), fullCopy()), someChanges()), make([]byte, mib)...)},
	}
	for name, k := range kinds {
		// The commit has at most 9 steps, and each unit of the head is one more.
		for stop := 0; ; stop++ {
			path := filepath.Join(t.TempDir(), "vm.raw")
			if k.base.GUID != 0 {
				require.NoError(t, copyVolume(t, path, VolumeSnapshot{}, a, fullCopy(), Allow{}))
			}
			task := VolumeTask{Target: inspectFile(t, path), Base: k.base, Snapshot: k.to}
			ended := false
			for range 2 {
				task.Target = inspectFile(t, path)
				v, err := OpenVolume(t.Context(), task)
				require.NoError(t, err, "%s, stopped at %d", name, stop)
				ended = runSteps(t, v, k.changes, stop)
				v.inFlight.Wait()
				require.NoError(t, v.f.Close())
				if ended {
					break
				}
			}
			f := inspectFile(t, path)
			if !ended {
				if f.Volume != nil {
					require.Empty(t, f.Volume.Changed, "%s, stopped at %d", name, stop)
				}
				if f.Volume != nil && f.Volume.Applying.GUID != 0 {
					require.Equal(t, k.to, f.Volume.Applying)
					require.Equal(t, k.base, f.Volume.Held)
					err := copyVolume(t, path, k.base, other, k.changes, Allow{})
					require.Equal(t, fault.Refused, fault.ClassOf(err), "%s, stopped at %d: %v", name, stop, err)
				}
				require.NoError(t, copyVolume(t, path, k.base, k.to, k.changes, Allow{}), "%s, stopped at %d", name, stop)
			}
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(k.want, got), "%s, stopped at %d", name, stop)
			require.Equal(t, &VolumeCopy{Held: k.to}, inspectFile(t, path).Volume)
			if ended {
				require.Greater(t, stop, len(k.changes))
				break
			}
		}
	}
}

// runSteps runs the first stop steps of a copy. It reports whether that was all. The head is written
// in two steps.
func runSteps(t *testing.T, v *VolumeTarget, changes []volumeChange, stop int) (all bool) {
	t.Helper()
	var steps []func() error
	for _, c := range changes {
		steps = append(steps, func() error { return c.to(v) })
	}
	for i, step := range v.commitSteps() {
		if i == 5 { // writeHead: a part of it first
			steps = append(steps, func() error {
				v.record.NextHead = hashHead(v.head, v.task.Snapshot.Size)
				if err := v.record.write(v.task.Target); err != nil {
					return err
				}
				_, err := v.Target.WriteAt(v.head[:headUnit*3], 0)
				return err
			})
		}
		steps = append(steps, step)
	}
	for i, step := range steps {
		if i == stop {
			return false
		}
		require.NoError(t, step(), i)
	}
	return true
}

// TestVolumeTargetChanged expects that no changes are applied to a file that does not hold their
// incremental source, or has no valid record of it.
func TestVolumeTargetChanged(t *testing.T) {
	t.Parallel()
	a, b := volumeSnapshotOf("a", 1, volumeTestSize), volumeSnapshotOf("b", 2, volumeTestSize)
	replace := func(t *testing.T, path, old, with string) {
		text, err := os.ReadFile(path + RecordSuffix)
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(path+RecordSuffix, []byte(strings.ReplaceAll(string(text), old, with)), 0o600))
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, path string)
		base   VolumeSnapshot
		want   string
	}{
		"another base":   {func(*testing.T, string) {}, volumeSnapshotOf("x", 9, volumeTestSize), "holds tank/vm@a, not tank/vm@x"},
		"no record":      {func(t *testing.T, path string) { require.NoError(t, os.Remove(path+RecordSuffix)) }, a, "has no record"},
		"written":        {func(t *testing.T, path string) { writeTo(t, path, 4*mib, []byte("x")) }, a, "it was modified on"},
		"truncated":      {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, mib)) }, a, "it was modified on"},
		"head, old time": {func(t *testing.T, path string) { keepingTime(t, path, func() { writeTo(t, path, 100, []byte("x")) }) }, a, "wrote to its start"},
		"damaged": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+RecordSuffix, []byte("{"), 0o600))
		}, a, "its record is damaged"},
		"of a newer zxfer": {func(t *testing.T, path string) { replace(t, path, `"version": 1`, `"version": 2`) }, a, "its record is damaged"},
		"unknown field":    {func(t *testing.T, path string) { replace(t, path, `"version": 1`, `"version": 1, "x": 1`) }, a, "its record is damaged"},
		"negative size":    {func(t *testing.T, path string) { replace(t, path, `"size": 5242880`, `"size": -1`) }, a, "its record is damaged"},
		"huge size":        {func(t *testing.T, path string) { replace(t, path, `"size": 5242880`, `"size": 4611686018427387904`) }, a, "its record is damaged"},
		"wrong state":      {func(t *testing.T, path string) { replace(t, path, `"complete"`, `"applying"`) }, a, "its record is damaged"},
		"huge": {func(t *testing.T, path string) {
			require.NoError(t, os.WriteFile(path+RecordSuffix, make([]byte, maxVolumeRecord+1), 0o600))
		}, a, "only this user writes"},
		"written by others": {func(t *testing.T, path string) { require.NoError(t, os.Chmod(path+RecordSuffix, 0o666)) }, a, "only this user writes"},
		"of another user": {func(t *testing.T, path string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a file away")
			}
			err := os.Chown(path+RecordSuffix, 65534, 65534)
			if errors.Is(err, syscall.EINVAL) {
				t.Skip("the user namespace has no other user")
			}
			require.NoError(t, err)
		}, a, "only this user writes"},
		"a link": {func(t *testing.T, path string) {
			require.NoError(t, os.Rename(path+RecordSuffix, path+".elsewhere"))
			require.NoError(t, os.Symlink(path+".elsewhere", path+RecordSuffix))
		}, a, "too many levels of symbolic links"},
		"a directory": {func(t *testing.T, path string) {
			require.NoError(t, os.Remove(path+RecordSuffix))
			require.NoError(t, os.Mkdir(path+RecordSuffix, 0o700))
		}, a, "only this user writes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "vm.raw")
			require.NoError(t, copyVolume(t, path, VolumeSnapshot{}, a, fullCopy(), Allow{}))
			tt.change(t, path)
			before, err := os.ReadFile(path)
			require.NoError(t, err)
			err = copyVolume(t, path, tt.base, b, someChanges(), Allow{})
			require.ErrorContains(t, err, tt.want)
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.NotEmpty(t, fault.HintOf(err))
			after, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, after))
		})
	}
}

func writeTo(t *testing.T, path string, off int64, p []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(p, off)
	require.NoError(t, errors.Join(err, f.Close()))
	now := time.Now() // a coarse clock may not have advanced
	require.NoError(t, os.Chtimes(path, now, now))
}

func keepingTime(t *testing.T, path string, f func()) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	f()
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestVolumeTargetContents expects that a full copy destroys nothing without consent, and resizes only
// files that zxfer made.
func TestVolumeTargetContents(t *testing.T) {
	t.Parallel()
	needsWipefs(t)
	a, b := volumeSnapshotOf("a", 1, volumeTestSize), volumeSnapshotOf("b", 2, volumeTestSize-mib)
	path := filepath.Join(t.TempDir(), "vm.raw")
	changes := append(fullCopy()[:3:3], volumeChange{3*mib + 5000, b.Size - 3*mib - 5000, 0})
	require.NoError(t, os.WriteFile(path, []byte("data"), 0o600))
	require.ErrorContains(t, copyVolume(t, path, VolumeSnapshot{}, a, fullCopy(), Allow{Overwrite: true, Confirm: "4"}), "has another size")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, copyVolume(t, path, VolumeSnapshot{}, a, fullCopy(), Allow{}), "an empty file")
	err := copyVolume(t, path, VolumeSnapshot{}, b, changes, Allow{})
	require.ErrorContains(t, err, "has a record of a copy of a volume: tank/vm@a")
	require.Contains(t, fault.HintOf(err), "{{overwrite}} {{confirm}} 5242880")
	require.NoError(t, copyVolume(t, path, VolumeSnapshot{}, b, changes, Allow{Overwrite: true, Confirm: "5242880"}))
	require.Equal(t, b.Size, inspectFile(t, path).Size)
	require.Equal(t, &VolumeCopy{Held: b}, inspectFile(t, path).Volume)
}

// TestVolumeTargetAbort expects that an aborted copy leaves an unused file alone, and otherwise says
// that it is incomplete. A link with the name of the temporary record is not followed.
func TestVolumeTargetAbort(t *testing.T) {
	t.Parallel()
	a := volumeSnapshotOf("a", 1, volumeTestSize)
	path := filepath.Join(t.TempDir(), "vm.raw")
	open := func() *VolumeTarget {
		v, err := OpenVolume(t.Context(), VolumeTask{Target: inspectFile(t, path), Snapshot: a})
		require.NoError(t, err)
		return v
	}
	v := open()
	require.NoError(t, v.Abort())
	require.NoFileExists(t, path)
	_, err := v.WriteAt([]byte("x"), 0)
	require.Error(t, err)

	victim := path + ".victim"
	require.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
	require.NoError(t, os.Symlink(victim, path+RecordSuffix+".new"))
	require.NoError(t, os.Symlink(victim, path+RecordSuffix))
	require.NoError(t, os.Remove(path+RecordSuffix))
	v = open()
	require.NoError(t, v.Zero(3*mib, mib))
	_, err = OpenVolume(t.Context(), VolumeTask{Target: inspectFile(t, path), Snapshot: a})
	require.ErrorContains(t, err, "another copy to "+path+" is running")
	require.NoError(t, v.Abort())
	require.NoError(t, v.Abort())
	text, err := os.ReadFile(victim)
	require.NoError(t, err)
	require.Equal(t, "precious", string(text))
	f := inspectFile(t, path)
	require.Equal(t, &VolumeCopy{Applying: a}, f.Volume)
	require.Equal(t, "source-incomplete", checkSource(f)[0].ID, "zxfer dev does not copy it")
	var record map[string]any
	text, err = os.ReadFile(path + RecordSuffix)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &record))
	require.Equal(t, "applying", record["state"])
}

// TestVolumeHash expects the digest of a file with the same contents.
func TestVolumeHash(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	path := filepath.Join(t.TempDir(), "image")
	for _, size := range []int64{512, 64 << 10, mib, volumeTestSize, volumeTestSize + 512} {
		for _, quick := range []bool{false, true} {
			image := make([]byte, size)
			opt := Options{Quick: quick}
			opt.Block = 64 << 10
			h, err := NewVolumeHash(size, opt)
			require.NoError(t, err)
			for at := int64(0); at < size; {
				n := min(size-at, 1+random.Int64N(200000))
				switch random.IntN(3) {
				case 0: // a gap
				case 1:
					require.NoError(t, h.Zero(at, n))
				default:
					copy(image[at:at+n], bytes.Repeat([]byte{byte(random.IntN(3))}, int(n)))
					_, err := h.WriteAt(image[at:at+n], at)
					require.NoError(t, err)
				}
				at += n
			}
			require.NoError(t, os.WriteFile(path, image, 0o600))
			want, err := DigestOf(t.Context(), DigestQuery{Device: inspectFile(t, path), Options: opt}, nil)
			require.NoError(t, err)
			got := h.Digest()
			require.Equal(t, want.Result.Device, got.Result.Device)
			require.Equal(t, want.Parts, got.Parts)
			require.Equal(t, want.PartBytes, got.PartBytes)
			_, err = h.WriteAt([]byte{1}, 0)
			require.Error(t, err, "offsets must ascend")
		}
	}
}
