package zfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// object describes an object of a generated stream.
type object struct {
	number uint64
	data   []byte
	block  int // bytes
}

// streamOf returns a stream of objects in the format of zfs send.
func streamOf(objects ...object) []byte {
	var out []byte
	record := func(kind RecordType, payload []byte, fields map[int]uint64) {
		h := make([]byte, RecordSize)
		for at, v := range fields {
			binary.LittleEndian.PutUint64(h[at:], v)
		}
		binary.LittleEndian.PutUint32(h, uint32(kind))
		out = append(append(out, h...), payload...)
	}
	record(RecordBegin, nil, map[int]uint64{8: beginMagic, 40: 7})
	for _, o := range objects {
		record(RecordObject, []byte("owner 44"), map[int]uint64{8: o.number, 24: uint64(o.block) | 8<<32})
		for at := 0; at < len(o.data); at += o.block {
			block := make([]byte, o.block) // the last block is padded to full size
			copy(block, o.data[at:])
			record(RecordWrite, block, map[int]uint64{8: o.number, 24: uint64(at), 32: uint64(o.block)})
		}
	}
	record(RecordEnd, nil, nil)
	return out
}

func contentsOf(t testing.TB, stream []byte, within DigestRange) Contents {
	t.Helper()
	c, err := ContentDigest(bytes.NewReader(stream), within, 0)
	require.NoError(t, err)
	require.LessOrEqual(t, len(c.Parts), MaxParts)
	return c
}

func noise(size int, seed byte) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func TestContentsDoNotDependOnBlocks(t *testing.T) {
	t.Parallel()
	data := noise(1_000_000, 1)
	clear(data[200_000:500_000])
	want := contentsOf(t, streamOf(object{2, data, 512}, object{3, data[:700], 1024}), DigestRange{})
	for _, block := range []int{1024, 4096, 128 << 10, 1 << 20} {
		require.Equal(t, want.Parts, contentsOf(t, streamOf(object{2, data, block}, object{3, data[:700], block}), DigestRange{}).Parts, block)
	}
	require.NotEqual(t, want.Sum, contentsOf(t, streamOf(object{3, data, 512}, object{2, data[:700], 1024}), DigestRange{}).Sum)
	moved := append(make([]byte, 512), data...)
	require.NotEqual(t, want.Sum, contentsOf(t, streamOf(object{2, moved, 512}, object{3, data[:700], 1024}), DigestRange{}).Sum)
}

// TestFirstDifference changes one object, and expects the search to find the object and then the
// block.
func TestFirstDifference(t *testing.T) {
	t.Parallel()
	for _, n := range []uint64{1, 900, 5000} {
		var objects []object
		for i := range n {
			objects = append(objects, object{2 + 3*i, noise(700, byte(i)), 1024})
		}
		for _, at := range []uint64{0, n / 2, n - 1} {
			a := streamOf(objects...)
			changed := bytes.Clone(objects[at].data)
			changed[600] ^= 1
			kept := objects[at]
			objects[at].data = changed
			b := streamOf(objects...)
			objects[at] = kept

			within := DigestRange{}
			for passes := 1; ; passes++ {
				from, to, err := FirstDifference(contentsOf(t, a, within), contentsOf(t, b, within))
				require.NoError(t, err)
				require.LessOrEqual(t, from, kept.number)
				require.Greater(t, to, kept.number)
				if to-from == 1 {
					break
				}
				require.Less(t, passes, 3)
				within = DigestRange{From: from, To: to}
			}
			from, to, err := FirstDifference(contentsOf(t, a, DigestRange{Object: kept.number}), contentsOf(t, b, DigestRange{Object: kept.number}))
			require.NoError(t, err)
			require.Equal(t, []uint64{512, 1024}, []uint64{Offset(from), Offset(to)})
		}
	}

	// A missing object and changed attributes are differences too.
	a, b := streamOf(object{2, noise(512, 1), 512}, object{4, nil, 512}), streamOf(object{2, noise(512, 1), 512}, object{4, nil, 512}, object{9, nil, 512})
	from, to, err := FirstDifference(contentsOf(t, a, DigestRange{}), contentsOf(t, b, DigestRange{}))
	require.NoError(t, err)
	require.Equal(t, []uint64{9, 10}, []uint64{from, to})
	c := bytes.Replace(a, []byte("owner"), []byte("other"), 1)
	from, to, err = FirstDifference(contentsOf(t, a, DigestRange{Object: 2}), contentsOf(t, c, DigestRange{Object: 2}))
	require.NoError(t, err)
	require.Equal(t, []uint64{0, 1}, []uint64{from, to})
	require.Empty(t, contentsOf(t, a, DigestRange{From: 5, To: 9}).Parts)
}

// TestFirstDifferenceWithTwoPartSizes compares digests whose parts have different sizes.
func TestFirstDifferenceWithTwoPartSizes(t *testing.T) {
	t.Parallel()
	var few, many []object
	for i := range uint64(1000) {
		few = append(few, object{1 + i, noise(512, byte(i)), 512})
	}
	many = append(many, few...)
	for i := range uint64(2000) {
		many = append(many, object{5000 + i, nil, 512})
	}
	a, b := contentsOf(t, streamOf(few...), DigestRange{}), contentsOf(t, streamOf(many...), DigestRange{})
	require.NotEqual(t, a.Shift, b.Shift)
	from, to, err := FirstDifference(a, b)
	require.NoError(t, err)
	require.LessOrEqual(t, from, uint64(5000))
	require.Greater(t, to, uint64(5000))
	same, err := a.parts(b.Shift)
	require.NoError(t, err)
	theirs, err := b.parts(b.Shift)
	require.NoError(t, err)
	require.Equal(t, same[100>>b.Shift], theirs[100>>b.Shift])
}

func TestFirstDifferenceOfInvalidDigests(t *testing.T) {
	t.Parallel()
	sound := contentsOf(t, streamOf(object{2, noise(512, 1), 512}), DigestRange{})
	for _, wrong := range []struct {
		answer Contents
		says   string
	}{
		{sound, "none of their parts"},
		{Contents{Parts: make([]Part, MaxParts+1)}, "1025 parts"},
		{Contents{Shift: 64}, "2^64"},
		{Contents{Parts: []Part{{2, "xy"}}}, `"xy"`},
		{Contents{Parts: []Part{{2, ""}}}, `""`},
	} {
		_, _, err := FirstDifference(wrong.answer, sound)
		require.ErrorContains(t, err, wrong.says)
		_, _, err = FirstDifference(sound, wrong.answer)
		require.ErrorContains(t, err, wrong.says)
	}
}

// FuzzContentsDoNotDependOnBlocks expects the same digest for the same file, regardless of its
// block size and of how holes are sent.
func FuzzContentsDoNotDependOnBlocks(f *testing.F) {
	f.Add([]byte("0123456789"), uint8(3), uint8(0), uint8(5), uint16(900))
	f.Fuzz(func(t *testing.T, text []byte, repeat, smaller, larger uint8, hole uint16) {
		data := bytes.Repeat(text, int(repeat))
		clear(data[min(len(data), int(hole)):min(len(data), 4*int(hole))])
		a := contentsOf(t, streamOf(object{5, data, 512 << (smaller % 8)}), DigestRange{})
		b := contentsOf(t, streamOf(object{5, data, 512 << (larger % 8)}), DigestRange{})
		require.Equal(t, a.Sum, b.Sum)
		require.Equal(t, a.Parts, b.Parts)
		if len(data) > 0 {
			data[int(repeat)%len(data)] ^= 0x80
			require.NotEqual(t, a.Sum, contentsOf(t, streamOf(object{5, data, 512}), DigestRange{}).Sum, fmt.Sprintf("%q", data))
		}
	})
}
