package zfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
)

// Types of nvpairs that tokens and the heads of streams use.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/nvpair.h
const (
	nvUint64    = 8
	nvString    = 9
	nvList      = 19
	nvListArray = 20
	nvBytes     = 26 // DATA_TYPE_UINT8_ARRAY
)

const (
	nvHeader     = 4 + 8  // encoding, byte order, 2 reserved; version and flags of the list
	nvPairHeader = 16     // size, name size, reserved, number of values, type
	nvMaxPairs   = 10_000 // far above the number in any token
	nvMaxDepth   = 4      // of nested lists
)

// parseNVList decodes an nvlist in native encoding. The kernel uses it for resume tokens and
// heads of streams. The second byte gives the byte order. Names and values are padded to 8
// bytes. Values are uint64, string, []byte or map[string]any (a list). A boolean without value
// and values of other types become true.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/nvpair/nvpair.c (nvs_native)
func parseNVList(b []byte) (map[string]any, error) {
	if len(b) < nvHeader {
		return nil, fmt.Errorf("its list has %d bytes, expected at least %d", len(b), nvHeader)
	}
	if b[0] != 0 {
		return nil, fmt.Errorf("its list has encoding %d, expected 0 (native)", b[0])
	}
	var order binary.ByteOrder = binary.BigEndian
	if b[1] == 1 {
		order = binary.LittleEndian
	}
	out, _, err := parseNVPairs(b[nvHeader:], order, 1)
	return out, err
}

// parseNVPairs decodes pairs up to the end mark and returns the bytes after it.
func parseNVPairs(b []byte, order binary.ByteOrder, depth int) (out map[string]any, rest []byte, err error) {
	out = map[string]any{}
	for {
		if len(b) < 4 {
			return nil, nil, fmt.Errorf("its list ends after %d pairs without a terminator", len(out))
		}
		size := int64(int32(order.Uint32(b)))
		if size == 0 {
			return out, b[4:], nil
		}
		if size < nvPairHeader || size%8 != 0 || size > int64(len(b)) || len(out) == nvMaxPairs || depth > nvMaxDepth {
			return nil, nil, fmt.Errorf("pair %d of its list has %d bytes of %d", len(out), size, len(b))
		}
		name, value, err := parseNVPair(b[:size], order)
		if err != nil {
			return nil, nil, fmt.Errorf("pair %d of its list: %w", len(out), err)
		}
		if out[name] != nil {
			return nil, nil, fmt.Errorf("its list has %q twice", name)
		}
		b = b[size:]
		if _, list := value.(map[string]any); list { // its members follow
			if value, b, err = parseNVPairs(b, order, depth+1); err != nil {
				return nil, nil, err
			}
		}
		out[name] = value
	}
}

func parseNVPair(b []byte, order binary.ByteOrder) (name string, value any, err error) {
	nameSize := int(int16(order.Uint16(b[4:])))
	count := int64(int32(order.Uint32(b[8:])))
	typ := order.Uint32(b[12:])
	valueAt := nvPairHeader + (nameSize+7)&^7
	if nameSize < 2 || valueAt > len(b) || b[nvPairHeader+nameSize-1] != 0 {
		return "", nil, fmt.Errorf("its name has %d bytes, not ended by zero within the pair", nameSize)
	}
	name = string(b[nvPairHeader : nvPairHeader+nameSize-1])
	// For ZFS, a name ends at its first zero byte. Two readers must not see two names.
	if strings.IndexByte(name, 0) >= 0 {
		return "", nil, fmt.Errorf("its name %q has a zero byte", name)
	}
	data := b[valueAt:]
	switch typ {
	case nvUint64:
		if len(data) < 8 {
			return "", nil, fmt.Errorf("number %q has %d bytes, expected 8", name, len(data))
		}
		return name, order.Uint64(data), nil
	case nvString:
		end := bytes.IndexByte(data, 0)
		if end < 0 {
			return "", nil, fmt.Errorf("string %q is not ended by zero", name)
		}
		return name, string(data[:end]), nil
	case nvBytes:
		if count < 0 || count > int64(len(data)) {
			return "", nil, fmt.Errorf("array %q has %d bytes in %d", name, count, len(data))
		}
		return name, data[:count:count], nil
	case nvList:
		return name, map[string]any{}, nil
	case nvListArray:
		// Its members follow outside of the pair. No known field has this type.
		return "", nil, fmt.Errorf("%q is an array of lists", name)
	}
	return name, true, nil
}
