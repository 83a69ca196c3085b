package device

import (
	"errors"

	"golang.org/x/sys/unix"
)

// zeroStep bounds one request to the kernel, which cannot be interrupted while
// it writes zeros to a device that has no command for them.
const zeroStep = 64 << 20

// Zero makes a range read as zeros without sending them, where the device or
// file system can: by unmapping it, by a command, or at the worst by writing.
// A plain discard does not promise zeros and is not used.
func (t *Target) Zero(off, n int64) error {
	if err := t.within(off, n); err != nil {
		return err
	}
	end := off + n
	// Whole sectors of a device, and whole pages of a file, by request.
	from, to := t.up(off), end&^(t.align-1)
	if t.facts.IsFile() && end == t.size {
		to = end // nothing lies beyond
	}
	if from >= to {
		return t.writeZeros(off, end)
	}
	if err := t.writeZeros(off, from); err != nil {
		return err
	}
	for from < to {
		step := min(to-from, zeroStep)
		if err := t.zeroRange(from, step); err != nil {
			return err
		}
		from += step
	}
	return t.writeZeros(to, end)
}

// zeroRange tries what costs least first.
func (t *Target) zeroRange(off, n int64) error {
	const keep = unix.FALLOC_FL_KEEP_SIZE
	// The kernel promises zeros for a hole of a block device, too, and says
	// EOPNOTSUPP where the device cannot unmap to zeros: blkdev_fallocate in
	// block/fops.c. A file that is not sparse keeps its space.
	modes := []uint32{unix.FALLOC_FL_PUNCH_HOLE | keep}
	if t.facts.IsFile() && !t.sparse {
		modes = []uint32{unix.FALLOC_FL_ZERO_RANGE | keep, unix.FALLOC_FL_PUNCH_HOLE | keep}
	}
	var ways []func() error
	for _, mode := range modes {
		ways = append(ways, func() error { return t.fallocate(mode, off, n) })
	}
	if !t.facts.IsFile() {
		ways = append(ways, func() error { return t.control(func(fd int) error { return zeroOut(fd, off, n) }) })
	}
	for _, try := range ways {
		err := try()
		for errors.Is(err, unix.EINTR) {
			err = try()
		}
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY):
			return t.writeError(off, err)
		}
	}
	return t.writeZeros(off, off+n)
}

func (t *Target) writeZeros(from, to int64) error {
	if from >= to {
		return nil
	}
	zeros := AlignedBuffer(int(min(to-from, 1<<20)))
	for from < to {
		n := min(to-from, int64(len(zeros)))
		if _, err := t.WriteAt(zeros[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}
