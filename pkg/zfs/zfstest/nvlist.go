package zfstest

import (
	"encoding/binary"
	"fmt"
)

// List is an nvlist as in the head of a package. Values are uint64, string, List, or nil for a
// boolean without value.
type List []Pair

// Pair is one entry of a List.
type Pair struct {
	Name  string
	Value any
}

// With returns the list with more pairs.
func (l List) With(pairs ...Pair) List { return append(l[:len(l):len(l)], pairs...) }

// XDR encodes the list as libnvpair does.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/nvpair/nvpair.c (nvs_xdr)
func (l List) XDR() []byte { return l.xdr([]byte{1, 1, 0, 0}) } // XDR, by a little-endian host

func (l List) xdr(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, 0) // version
	b = binary.BigEndian.AppendUint32(b, 1) // names are unique
	for _, p := range l {
		b = p.xdr(b)
	}
	return append(b, make([]byte, 8)...)
}

func (p Pair) xdr(b []byte) []byte {
	var typ, count uint32 = 1, 1
	var value []byte
	native := 16 + (len(p.Name)+1+7)&^7
	switch v := p.Value.(type) {
	case nil: // a boolean without value
		count = 0
	case uint64:
		typ, value = 8, binary.BigEndian.AppendUint64(nil, v)
		native += 8
	case string:
		typ, value = 9, xdrString(nil, v)
		native += (len(v) + 1 + 7) &^ 7
	case List:
		typ, value = 19, v.xdr(nil)
		native += 24
	default:
		panic(fmt.Sprintf("a pair of type %T", v))
	}
	name := xdrString(nil, p.Name)
	b = binary.BigEndian.AppendUint32(b, uint32(8+len(name)+8+len(value)))
	b = binary.BigEndian.AppendUint32(b, uint32(native))
	b = append(b, name...)
	b = binary.BigEndian.AppendUint32(b, typ)
	b = binary.BigEndian.AppendUint32(b, count)
	return append(b, value...)
}

func xdrString(b []byte, s string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
	b = append(b, s...)
	return append(b, make([]byte, -len(s)&3)...)
}
