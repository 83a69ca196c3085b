package device

import (
	"errors"

	"golang.org/x/sys/unix"
)

// zeroStep limits one kernel request, in bytes. If a device has no command for
// zeros, the kernel writes them and cannot be interrupted.
const zeroStep = 64 << 20

// Zero makes a range read as zeros. It unmaps the range, uses a device command, or
// as a last resort writes zeros. It does not use plain discards, which do not
// guarantee zeros.
func (t *Target) Zero(off, n int64) error {
	if err := t.checkRange(off, n); err != nil {
		return err
	}
	end := off + n
	// Requests need whole sectors of a device, or whole pages of a file.
	from, to := t.roundUp(off), end&^(t.align-1)
	if t.facts.IsFile() && end == t.size {
		to = end // the end of the file
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

// zeroRange tries the cheapest method first.
func (t *Target) zeroRange(off, n int64) error {
	const keep = unix.FALLOC_FL_KEEP_SIZE
	// For block devices too, the kernel guarantees that holes read as zeros. It
	// returns EOPNOTSUPP if the device cannot unmap to zeros: blkdev_fallocate in
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
