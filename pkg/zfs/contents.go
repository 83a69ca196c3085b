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

// MaxParts bounds the parts of a Contents.
const MaxParts = 1024

// Contents is what a stream holds, apart from how it was framed.
type Contents struct {
	Sum   string `json:"sum"`   // hex, 128 bits, of all of it
	Bytes uint64 `json:"bytes"` // of the stream, as it was produced
	// Parts are the sums of what Within asks for, at most MaxParts of them, by
	// positions in ascending order; what holds nothing is left out. A part is
	// of 1<<Shift positions.
	Shift uint   `json:"shift,omitempty"`
	Parts []Part `json:"parts,omitempty"`
}

// Part is the sum of the positions from At<<Shift on.
type Part struct {
	At  uint64 `json:"at"`
	Sum string `json:"sum"`
}

// Within says what the parts of a Contents are parts of. A position is the
// number of an object, or within one object 0 for what it is (owner, times,
// size) and from 1 on its cells of 512 bytes.
type Within struct {
	Object uint64 `json:"object,omitempty"` // 0: positions are objects
	From   uint64 `json:"from,omitempty"`
	To     uint64 `json:"to,omitempty"` // the first position beyond; 0: none is
}

// dataAt is the position of an offset within an object.
func dataAt(offset uint64) uint64 { return 1 + offset/cell }

// Offset is the first byte of a position within an object.
func Offset(position uint64) uint64 {
	if position == 0 {
		return 0
	}
	return (position - 1) * cell
}

// FirstDifference returns the first positions, from one to before another, in
// which two answers to one question differ.
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

// parts returns sums of parts of 1<<shift positions.
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

// contents is what a digest came to.
func (d *digest) contents(read uint64) Contents {
	c := Contents{Sum: d.all.String(), Bytes: read, Shift: d.shift, Parts: make([]Part, 0, len(d.parts))}
	for at, s := range d.parts {
		c.Parts = append(c.Parts, Part{at, s.String()})
	}
	slices.SortFunc(c.Parts, func(a, b Part) int { return cmp.Compare(a.At, b.At) })
	return c
}

// Sum is of hashes, modulo 2^128.
type Sum xxh3.Uint128

// Add adds another.
func (s *Sum) Add(x Sum) {
	var carry uint64
	s.Lo, carry = bits.Add64(s.Lo, x.Lo, 0)
	s.Hi, _ = bits.Add64(s.Hi, x.Hi, carry)
}

// String writes it as 32 hexadecimal digits.
func (s Sum) String() string { return fmt.Sprintf("%016x%016x", s.Hi, s.Lo) }

func parseSum(s string) (Sum, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 16 {
		return Sum{}, fmt.Errorf("got the sum %q, expected 32 hexadecimal digits", s)
	}
	return Sum{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}, nil
}
