package zfstest

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
)

// Token returns a forged resume token. Anyone can forge one, because its checksum has no key.
// flags are names such as "rawok" and "savedok".
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dataset.c (get_receive_resume_token_impl)
func Token(toName string, toGUID, fromGUID uint64, flags ...string) string {
	return TokenAt(0, toName, toGUID, fromGUID, flags...)
}

// TokenAt returns a forged resume token of a stream of which stored bytes were stored.
func TokenAt(stored uint64, toName string, toGUID, fromGUID uint64, flags ...string) string {
	number := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	list := []byte{0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0} // native, little-endian, names are unique
	pair := func(name string, typ uint32, value []byte) {
		pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }
		body := append(pad(append([]byte(name), 0)), pad(value)...)
		list = binary.LittleEndian.AppendUint32(list, uint32(16+len(body)))
		list = binary.LittleEndian.AppendUint32(list, uint32(len(name)+1))
		list = binary.LittleEndian.AppendUint32(list, 1)
		list = append(binary.LittleEndian.AppendUint32(list, typ), body...)
	}
	for name, n := range map[string]uint64{"object": 1, "offset": 0, "bytes": stored, "toguid": toGUID} {
		pair(name, 8, number(n))
	}
	if fromGUID != 0 {
		pair("fromguid", 8, number(fromGUID))
	}
	pair("toname", 9, append([]byte(toName), 0))
	for _, f := range flags {
		pair(f, 1, nil)
	}
	list = append(list, 0, 0, 0, 0)
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(list) // a buffer takes everything
	_ = z.Close()
	var sum fletcher4
	sum.add(packed.Bytes(), binary.LittleEndian)
	return fmt.Sprintf("1-%x-%x-%x", sum[0], len(list), packed.Bytes())
}

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
