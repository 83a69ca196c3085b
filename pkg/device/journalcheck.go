package device

import (
	"slices"

	"golang.org/x/sys/unix"
)

// samples is the approximate number of recorded blocks that Check reads.
const samples = 16

// Check compares the target with the journal. usable reports that the copy can
// resume: the sampled blocks and all recorded blocks with signatures are intact,
// and every other signature existed when the copy started.
//
// wrote reports that, in addition, the interrupted copy itself wrote every
// signature on the target. Only such a target needs no consent. A copy writes the
// blocks that identify a target last, so an interrupted copy has rarely written
// signatures.
func (j *Journal) Check(dst Facts) (usable, wrote bool, err error) {
	if dst.Unprobed != "" {
		return false, false, nil
	}
	if j.recorded == 0 {
		// The inode matches, but another program may have filled the file. In a
		// file of this copy, the first block is still missing.
		if dst.Kind != KindFile || len(dst.Signatures) > 0 {
			return false, false, nil
		}
		wrote, err = j.checkBlocks(dst, []int64{0}, func(_ int64, p []byte) bool { return IsZero(p) })
		return false, wrote, err
	}
	wanted := j.sampleBlocks()
	wrote = true
	for _, s := range dst.Signatures {
		at := s.Offset
		for _, p := range dst.Partitions {
			if p.Name == s.Device {
				at += p.Start
			}
		}
		if i := at / j.block; at < j.size && j.sums[i] != (Sum{}) {
			wanted = append(wanted, i)
			continue
		}
		wrote = false
		if !slices.Contains(j.oldSignatures, s.key()) {
			return false, false, nil
		}
	}
	usable, err = j.checkBlocks(dst, wanted, func(i int64, p []byte) bool {
		return j.sum(i, p[:min(int64(len(p)), j.length(i))]) == j.sums[i]
	})
	return usable, usable && wrote, err
}

// key identifies a signature while the copy overwrites its locations one by one.
func (s Signature) key() string { return s.Device + " " + s.Type + " " + s.UUID }

// sampleBlocks returns evenly spaced recorded blocks, including the last one.
func (j *Journal) sampleBlocks() []int64 {
	step := max(1, j.recorded/samples)
	out := make([]int64, 0, 2*samples)
	left := j.recorded
	for i, sum := range j.sums {
		if sum == (Sum{}) {
			continue
		}
		if left--; left%step == 0 {
			out = append(out, int64(i))
		}
	}
	return out
}

// checkBlocks reports whether ok holds for all of these blocks of the target. It
// returns false for unreadable blocks.
func (j *Journal) checkBlocks(dst Facts, blocks []int64, ok func(i int64, p []byte) bool) (bool, error) {
	h, err := openHandle(dst, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	buf := AlignedBuffer(int(j.block))
	for _, i := range blocks {
		start := i * j.block
		p := buf[:max(0, min(j.block, dst.Size-start))] // the source may be smaller than the target
		if n, _ := h.readAt(p, start); n < len(p) || !ok(i, p) {
			return false, nil
		}
	}
	return true, nil
}
