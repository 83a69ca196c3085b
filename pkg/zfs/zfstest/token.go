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
