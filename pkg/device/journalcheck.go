package device

import (
	"slices"

	"golang.org/x/sys/unix"
)

// samples is how many of the blocks that are noted are read to see whether the
// target still is what the copy left.
const samples = 16

// Check compares the target with the journal. usable tells that the copy can go
// on: what is noted is still there, as far as samples and the blocks that hold
// signatures tell, and every other signature was there when the copy began.
//
// wrote tells that, moreover, everything by which the target is recognised was
// put there by the interrupted copy itself: it needs no consent. Otherwise it
// needs that like any other, as the blocks by which a target is recognised are
// written last.
func (j *Journal) Check(dst Facts) (usable, wrote bool, err error) {
	if dst.Unprobed != "" {
		return false, false, nil
	}
	if j.noted == 0 {
		// A journal of a file names its inode, but somebody else may have filled
		// it: what this copy made has no first block yet.
		if dst.Kind != KindFile || len(dst.Signatures) > 0 {
			return false, false, nil
		}
		wrote, err = j.every(dst, []int64{0}, func(_ int64, p []byte) bool { return IsZero(p) })
		return false, wrote, err
	}
	wanted := j.sample()
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
		if !slices.Contains(j.found, s.mark()) {
			return false, false, nil
		}
	}
	usable, err = j.every(dst, wanted, func(i int64, p []byte) bool {
		return j.sum(i, p[:min(int64(len(p)), j.length(i))]) == j.sums[i]
	})
	return usable, usable && wrote, err
}

// mark is what a signature keeps while the copy overwrites one after the other
// of its places.
func (s Signature) mark() string { return s.Device + " " + s.Type + " " + s.UUID }

// sample chooses blocks that are noted, evenly, the last one among them.
func (j *Journal) sample() []int64 {
	step := max(1, j.noted/samples)
	out := make([]int64, 0, 2*samples)
	left := j.noted
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

// every tells whether blocks of the target are ok. One that cannot be read is not.
func (j *Journal) every(dst Facts, blocks []int64, ok func(i int64, p []byte) bool) (bool, error) {
	h, err := openHandle(dst, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	buf := AlignedBuffer(int(j.block))
	for _, i := range blocks {
		start := i * j.block
		p := buf[:max(0, min(j.block, dst.Size-start))] // all that is there: the source may be smaller
		if n, _ := h.readAt(p, start); n < len(p) || !ok(i, p) {
			return false, nil
		}
	}
	return true, nil
}
