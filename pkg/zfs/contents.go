package zfs

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/zeebo/xxh3"
)

// MaxParts is the largest number of parts of a Contents.
const MaxParts = 1024

// Contents is the digest of a stream. It does not depend on how the stream was framed.
type Contents struct {
	Sum   string `json:"sum"`   // hex, 128 bits, of the whole stream
	Bytes uint64 `json:"bytes"` // size of the stream
	// Parts are the sums of the positions that Within selects, in ascending order, at most
	// MaxParts. Empty parts are left out. Each part covers 1<<Shift positions.
	Shift uint   `json:"shift,omitempty"`
	Parts []Part `json:"parts,omitempty"`
}

// Part is the sum of 1<<Shift positions, starting at position At<<Shift.
type Part struct {
	At  uint64 `json:"at"`
	Sum string `json:"sum"`
}

// Within selects the positions that the parts of a Contents cover. If Object is 0, a position
// is the number of an object. Otherwise it is a place in Object: 0 for its attributes (owner,
// times, size), and 1 and up for its cells of 512 bytes.
type Within struct {
	Object uint64 `json:"object,omitempty"` // 0: positions are objects
	From   uint64 `json:"from,omitempty"`
	To     uint64 `json:"to,omitempty"` // the first position after the range; 0: no limit
}

// dataAt returns the position of an offset within an object.
func dataAt(offset uint64) uint64 { return 1 + offset/cell }

// Offset returns the offset of the first byte of a position within an object.
func Offset(position uint64) uint64 {
	if position == 0 {
		return 0
	}
	return (position - 1) * cell
}

// FirstDifference returns the first range [from, to) of positions in which two digests with
// the same Within differ.
func FirstDifference(a, b Contents) (from, to uint64, err error) {
	shift := max(a.Shift, b.Shift)
	x, err := a.parts(shift)
	if err != nil {
		return 0, 0, err
	}
	y, err := b.parts(shift)
	if err != nil {
		return 0, 0, err
	}
	first, found := uint64(0), false
	for _, m := range []map[uint64]Sum{x, y} {
		for at := range m {
			if x[at] != y[at] && (!found || at < first) {
				first, found = at, true
			}
		}
	}
	if !found {
		return 0, 0, errors.New("the digests differ, and those of no part do")
	}
	return first << shift, (first + 1) << shift, nil
}

// parts returns the sums merged into parts of 1<<shift positions.
func (c Contents) parts(shift uint) (map[uint64]Sum, error) {
	if len(c.Parts) > MaxParts || shift > 63 {
		return nil, fmt.Errorf("got a digest of %d parts of up to 2^%d positions, expected at most %d of 2^63", len(c.Parts), shift, MaxParts)
	}
	out := make(map[uint64]Sum, len(c.Parts))
	for _, p := range c.Parts {
		s, err := parseSum(p.Sum)
		if err != nil {
			return nil, err
		}
		m := out[p.At>>(shift-c.Shift)]
		m.Add(s)
		out[p.At>>(shift-c.Shift)] = m
	}
	return out, nil
}

// contents returns the result of the digest.
func (d *digest) contents(read uint64) Contents {
	c := Contents{Sum: d.all.String(), Bytes: read, Shift: d.shift, Parts: make([]Part, 0, len(d.parts))}
	for at, s := range d.parts {
		c.Parts = append(c.Parts, Part{at, s.String()})
	}
	slices.SortFunc(c.Parts, func(a, b Part) int { return cmp.Compare(a.At, b.At) })
	return c
}

// Sum is a sum of hashes, modulo 2^128.
type Sum xxh3.Uint128

// Add adds x to the sum.
func (s *Sum) Add(x Sum) {
	var carry uint64
	s.Lo, carry = bits.Add64(s.Lo, x.Lo, 0)
	s.Hi, _ = bits.Add64(s.Hi, x.Hi, carry)
}

// String returns 32 hexadecimal digits.
func (s Sum) String() string { return fmt.Sprintf("%016x%016x", s.Hi, s.Lo) }

func parseSum(s string) (Sum, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 {
		return Sum{}, fmt.Errorf("got the sum %q, expected 32 hexadecimal digits", s)
	}
	return Sum{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}, nil
}
