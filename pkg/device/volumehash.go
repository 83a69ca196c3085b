package device

import (
	"fmt"
)

// VolumeHash hashes the contents of a volume's snapshot as DigestOf hashes a device with the same
// data. It gets the contents in ascending order. Bytes that it does not get are zeros.
type VolumeHash struct {
	grid
	opt   Options
	block []byte // of the current block
	at    int64  // bytes that arrived
	empty bool   // block is zeros so far
	zero  Sum    // of a block of zeros; valid if known
	known bool
	sums  []Sum
}

// NewVolumeHash returns the hash of a volume with size bytes.
func NewVolumeHash(size int64, opt Options) (*VolumeHash, error) {
	if err := opt.CheckSize(size); err != nil {
		return nil, err
	}
	opt = opt.filled()
	opt.NoVerify = false
	return &VolumeHash{grid: newGrid(size, opt.BlockHash()), opt: opt, block: make([]byte, opt.Block), empty: true}, nil
}

// WriteAt adds data. Offsets must ascend.
func (h *VolumeHash) WriteAt(p []byte, off int64) (int, error) {
	if off < h.at || off > h.size || int64(len(p)) > h.size-off {
		return 0, fmt.Errorf("data at byte %d of %d, after byte %d", off, h.size, h.at)
	}
	h.skip(off)
	done := 0
	for done < len(p) {
		n := copy(h.block[h.at%h.grid.block:h.length(h.at/h.grid.block)], p[done:])
		h.empty = false
		done += n
		h.advance(int64(n))
	}
	return len(p), nil
}

// Zero adds zeros.
func (h *VolumeHash) Zero(off, n int64) error {
	if off < h.at || off > h.size || n > h.size-off {
		return fmt.Errorf("zeros at byte %d of %d, after byte %d", off, h.size, h.at)
	}
	h.skip(off + n)
	return nil
}

// skip adds zeros up to an offset.
func (h *VolumeHash) skip(to int64) {
	for h.at < to {
		i := h.at / h.grid.block
		h.advance(min(to, i*h.grid.block+h.length(i)) - h.at)
	}
}

// advance counts bytes of the current block, and hashes it if it is complete.
func (h *VolumeHash) advance(n int64) {
	i := h.at / h.grid.block
	if h.at += n; h.at < i*h.grid.block+h.length(i) {
		return
	}
	p := h.block[:h.length(i)]
	// Sums of xxh3 do not depend on the offset.
	if same := h.empty && h.cut.Quick && int64(len(p)) == h.grid.block; same && h.known {
		h.sums = append(h.sums, h.zero)
	} else {
		sum := h.sum(i, p)
		h.sums = append(h.sums, sum)
		if same {
			h.zero, h.known = sum, true
		}
	}
	if !h.empty {
		clear(h.block)
	}
	h.empty = true
}

// Digest returns the digest of the volume.
func (h *VolumeHash) Digest() Digest {
	h.skip(h.size)
	d := Digest{}
	d.Result.Device = Account{Size: h.size, Block: int(h.grid.block), SourceDigest: h.opt.digest(h.cut.Root(h.sums))}
	d.addParts(h.sums)
	return d
}
