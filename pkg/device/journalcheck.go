package device

import (
	"math/bits"
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
	if j.Blocks() == 0 {
		// A journal of a file names its inode, but somebody else may have filled
		// it: what this copy made has no first block yet.
		if dst.Kind != KindFile || len(dst.Signatures) > 0 {
			return false, false, nil
		}
		wrote, err = j.blank(dst)
		return false, wrote, err
	}
	wanted := map[int64]Sum{}
	wrote = true
	for _, s := range dst.Signatures {
		at := s.Offset
		for _, p := range dst.Partitions {
			if p.Name == s.Device {
				at += p.Start
			}
		}
		if i := at / int64(j.cut.Block); at < j.size && j.has(i) {
			wanted[i] = Sum{}
			continue
		}
		wrote = false
		if !slices.Contains(j.found, s.mark()) {
			return false, false, nil
		}
	}
	for _, i := range j.sample() {
		wanted[i] = Sum{}
	}
	err = j.Stored(func(i int64, sum Sum) {
		if _, ok := wanted[i]; ok {
			wanted[i] = sum
		}
	})
	if err != nil {
		return false, false, err
	}
	usable, err = j.holds(dst, wanted)
	return usable, usable && wrote, err
}

// mark is what a signature keeps while the copy overwrites one after the other
// of its places.
func (s Signature) mark() string { return s.Device + " " + s.Type + " " + s.UUID }

func (j *Journal) has(i int64) bool { return j.noted[i/64]>>(i%64)&1 != 0 }

// sample chooses blocks that are noted, evenly, the last one among them.
func (j *Journal) sample() []int64 {
	step := max(1, j.count/samples)
	out := make([]int64, 0, 2*samples)
	left := j.count
	for k, word := range j.noted {
		for ; word != 0; word &= word - 1 {
			if left--; left%step == 0 {
				out = append(out, int64(k)*64+int64(bits.TrailingZeros64(word)))
			}
		}
	}
	return out
}

// holds tells whether blocks of the target have those hashes. One that cannot be
// read has not.
func (j *Journal) holds(dst Facts, wanted map[int64]Sum) (bool, error) {
	h, err := openHandle(dst, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	buf := AlignedBuffer(j.cut.Block)
	for i, want := range wanted {
		start := i * int64(j.cut.Block)
		p := buf[:min(int64(j.cut.Block), j.size-start)]
		if n, _ := h.readAt(p, start); n < len(p) || j.cut.Sum(p, start, j.size) != want {
			return false, nil
		}
	}
	return true, nil
}

// blank tells whether the first block of a file holds nothing.
func (j *Journal) blank(dst Facts) (bool, error) {
	h, err := openHandle(dst, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	p := AlignedBuffer(int(min(int64(j.cut.Block), dst.Size)))
	n, err := h.readAt(p, 0)
	return err == nil && n == len(p) && IsZero(p), nil
}
