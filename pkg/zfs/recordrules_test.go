package zfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// header returns a little-endian header that consists of words of 8 bytes. Narrower fields are
// parts of a word.
func header(typ RecordType, words ...uint64) []byte {
	h := make([]byte, RecordSize)
	binary.LittleEndian.PutUint32(h, uint32(typ))
	for i, v := range words {
		binary.LittleEndian.PutUint64(h[8+8*i:], v)
	}
	return h
}

const toGUID = 77

func beginOf(features uint64, objects uint32) []byte {
	return header(RecordBegin, beginMagic, features<<2|substream, 0, uint64(objects), toGUID)
}

// objectOf returns an OBJECT record with blocks of a size, and with the fields of a raw one.
func objectOf(number uint64, block, bonus, rawBonus uint32, slots byte, raw ...byte) []byte {
	h := header(RecordObject, number, 19, uint64(block)|uint64(bonus)<<32, uint64(slots)<<16|uint64(rawBonus)<<32, toGUID)
	copy(h[48:], raw)
	return h
}

func lastBlock(h []byte, number uint64) []byte {
	binary.LittleEndian.PutUint64(h[56:], number)
	return h
}

func freeObjects(first, count uint64) []byte { return header(RecordFreeObjects, first, count, toGUID) }

func rangeOf(first, count uint64) []byte { return header(RecordObjectRange, first, count, toGUID) }

func freeOf(object, offset, length uint64) []byte {
	return header(RecordFree, object, offset, length, toGUID)
}

func writeOf(object, offset, length uint64, packed ...uint64) []byte {
	h := header(RecordWrite, object, 19, offset, length, toGUID)
	if len(packed) > 0 {
		h[50] = 15 // LZ4
		binary.LittleEndian.PutUint64(h[96:], packed[0])
	}
	return h
}

func embeddedOf(object, offset, length, unpacked, packed uint64) []byte {
	h := header(RecordWriteEmbedded, object, offset, length, toGUID, 0, unpacked|packed<<32)
	h[40] = 15 // LZ4
	return h
}

// changed returns a header with another byte.
func changed(h []byte, at int, to byte) []byte {
	h[at] = to
	return h
}

func spillOf(object, length, packed uint64) []byte {
	return header(RecordSpill, object, length, toGUID, 0, packed)
}

// checkHeaders checks a stream of headers and returns the first error.
func checkHeaders(t testing.TB, begin []byte, headers ...[]byte) error {
	t.Helper()
	var b, r Record
	require.NoError(t, b.parse(begin, binary.LittleEndian))
	rules := NewRecordRules(&b)
	for _, h := range headers {
		require.NoError(t, r.parse(h, binary.LittleEndian))
		if err := rules.Check(&r); err != nil {
			return err
		}
	}
	return nil
}

// TestRecordRules gives each rule a stream that it refuses and, if it has a limit, one at the
// limit that it passes.
func TestRecordRules(t *testing.T) {
	t.Parallel()
	const (
		plain = featureSpill
		all   = plain | featureEmbedded | featureLZ4 | featureLargeBlocks | featureCompressed
		raw   = plain | featureRaw | featureLargeBlocks
		max64 = math.MaxUint64
		k128  = 128 << 10
	)
	object := objectOf(7, k128, 168, 0, 1)
	rawObject := func() []byte { return lastBlock(objectOf(7, 4096, 168, 320, 1, 17, 1, 3), 2) }
	data := func(h ...[]byte) [][]byte { return append([][]byte{freeObjects(0, 7), object}, h...) }
	for name, tt := range map[string]struct {
		features uint64
		volume   bool
		records  [][]byte
		want     string // "": it passes
	}{
		"regular stream": {plain, false, [][]byte{freeObjects(0, 1), objectOf(1, 512, 168, 0, 1), freeOf(1, 512, max64), writeOf(1, 0, 512),
			objectOf(2, k128, 168, 0, 1), freeOf(2, 4*k128, max64), spillOf(2, 1024, 0), writeOf(2, 0, k128), freeOf(2, k128, k128), writeOf(2, 2*k128, k128), spillOf(2, 512, 0),
			objectOf(4, 512, 14144, 0, 28), freeObjects(32, 64), objectOf(96, 512, 0, 0, 1), freeObjects(97, maxObject-97), header(RecordEnd, 0, 0, 0, 0, toGUID)}, ""},
		"OpenZFS 0.8, a block of objects before its data": {plain, false, [][]byte{objectOf(1, 512, 0, 0, 1), freeOf(1, 512, max64), objectOf(2, 512, 0, 0, 1), freeOf(2, 512, max64),
			freeObjects(3, 29), writeOf(1, 0, 512), writeOf(2, 0, 512)}, ""},
		"without slots, as before large dnodes":            {plain, false, [][]byte{objectOf(1, 512, 320, 0, 0), objectOf(2, 512, 320, 0, 0)}, ""},
		"large blocks in parts":                            {plain, false, data(writeOf(7, 0, k128), writeOf(7, k128, 72<<10)), ""},
		"a large block in a pointer, without large blocks": {plain | featureEmbedded, false, data(embeddedOf(7, 1<<20, 1<<20, 1<<20, 40), writeOf(7, 2<<20, k128)), ""},

		"another snapshot":       {plain, false, [][]byte{header(RecordFreeObjects, 0, 1, toGUID+1)}, "GUID 78"},
		"end of another":         {plain, false, [][]byte{header(RecordEnd, 0, 0, 0, 0, toGUID+1)}, "GUID 78"},
		"frees what it wrote":    {plain, false, data(writeOf(7, 0, 512), freeObjects(7, 1)), "ascending order: an earlier record named object 7"},
		"frees more, from below": {plain, false, data(writeOf(7, 0, 512), freeObjects(0, 100)), "ascending order"},
		"frees what it created":  {plain, false, data(freeObjects(7, 1)), "ascending order"},
		"frees twice":            {plain, false, [][]byte{freeObjects(1, 4), freeObjects(4, 1)}, "an earlier record named object 4"},
		"creates twice":          {plain, false, data(object), "ascending order"},
		"creates an inner slot":  {plain, false, [][]byte{objectOf(8, 512, 0, 0, 4), objectOf(11, 512, 0, 0, 1)}, "an earlier record named object 11"},
		"frees an inner slot":    {plain, false, [][]byte{objectOf(8, 512, 0, 0, 4), freeObjects(11, 1)}, "an earlier record named object 11"},
		"creates after a free":   {plain, false, [][]byte{freeObjects(1, 4), objectOf(4, 512, 0, 0, 1)}, "an earlier record named object 4"},
		"frees none":             {plain, false, [][]byte{freeObjects(1, 0)}, "covers 0 objects"},
		"frees too many":         {plain, false, [][]byte{freeObjects(1, maxObject)}, "but there are 281474976710656"},
		"frees beyond all":       {plain, false, [][]byte{freeObjects(max64, 2)}, "but there are"},

		"object 0":               {plain, false, [][]byte{objectOf(0, 512, 0, 0, 1)}, "no such object"},
		"last object":            {plain, false, [][]byte{objectOf(maxObject-1, 512, 0, 0, 1)}, ""},
		"object beyond the last": {plain, false, [][]byte{objectOf(maxObject, 512, 0, 0, 1)}, "no such object"},
		"special object":         {plain, false, data(writeOf(max64, 0, 512)), "no such object"},
		"slots at the end":       {plain, false, [][]byte{objectOf(28, 512, 0, 0, 4)}, ""},
		"slots across the end":   {plain, false, [][]byte{objectOf(28, 512, 0, 0, 5)}, "cross a block"},
		"no block size":          {plain, false, [][]byte{objectOf(1, 0, 0, 0, 1)}, "blocks of 0 bytes"},
		"odd block size":         {plain, false, [][]byte{objectOf(1, 1000, 0, 0, 1)}, "blocks of 1000 bytes"},
		"largest block":          {plain, false, [][]byte{objectOf(1, maxBlock, 0, 0, 1)}, ""},
		"too large a block":      {plain, false, [][]byte{objectOf(1, maxBlock+512, 0, 0, 1)}, "blocks of"},
		"largest bonus":          {plain, false, [][]byte{objectOf(4, 512, 28*512-192, 0, 28)}, ""},
		"too large a bonus":      {plain, false, [][]byte{objectOf(4, 512, 321, 0, 1)}, "1 slots hold only 320"},
		"raw bonus":              {plain, false, [][]byte{objectOf(4, 512, 8, 320, 1)}, "fields of a raw stream"},
		"raw levels":             {plain, false, [][]byte{objectOf(4, 512, 8, 0, 1, 0, 2)}, "fields of a raw stream"},

		"data without an object":      {plain, false, [][]byte{writeOf(7, 0, 512)}, "no OBJECT record"},
		"data of a freed object":      {plain, false, [][]byte{freeObjects(7, 1), writeOf(7, 0, 512)}, "no OBJECT record"},
		"data of an inner slot":       {plain, false, [][]byte{objectOf(8, 512, 0, 0, 4), writeOf(9, 0, 512)}, "no OBJECT record"},
		"data of an earlier block":    {plain, false, data(objectOf(39, 512, 0, 0, 1), writeOf(7, 0, 512)), "no OBJECT record"},
		"free without an object":      {plain, false, [][]byte{freeOf(7, 0, 512)}, "no OBJECT record"},
		"spill without an object":     {plain, false, [][]byte{spillOf(7, 512, 0)}, "no OBJECT record"},
		"data of an earlier object":   {plain, false, data(objectOf(8, 512, 0, 0, 1), writeOf(8, 0, 512), writeOf(7, 0, 512)), "offset 511 of object 8 was written"},
		"spill of an earlier object":  {plain, false, data(objectOf(8, 512, 0, 0, 1), writeOf(8, 0, 512), spillOf(7, 512, 0)), "of object 8 was written"},
		"data before data":            {plain, false, data(writeOf(7, k128, 512), writeOf(7, 0, 512)), "of object 7 was written"},
		"data over data":              {plain, false, data(writeOf(7, 0, k128), writeOf(7, 0, 512)), "offset 131071 of object 7 was written"},
		"free of data":                {plain, false, data(writeOf(7, 0, k128), freeOf(7, 0, max64)), "was written"},
		"free of the end of data":     {plain, false, data(writeOf(7, 0, k128), freeOf(7, k128-1, 1)), "was written"},
		"free after data":             {plain, false, data(writeOf(7, 0, k128), freeOf(7, k128, max64-k128)), ""},
		"free beyond the end":         {plain, false, data(freeOf(7, k128, max64-1)), "too large"},
		"write inside a block":        {plain, false, data(writeOf(7, 512, 512)), "not a multiple of the block"},
		"empty write":                 {plain, false, data(writeOf(7, 0, 0)), "writes 0 bytes"},
		"write of more than a block":  {plain, false, data(writeOf(7, 0, k128+512)), "to a block of 131072"},
		"write at the largest offset": {plain, false, [][]byte{objectOf(7, 1024, 0, 0, 1), writeOf(7, max64-1023, 512)}, ""},
		"write beyond it":             {plain, false, [][]byte{objectOf(7, 1024, 0, 0, 1), writeOf(7, max64-1023, 1024)}, "too large"},
		"compressed":                  {all, false, data(writeOf(7, 0, k128, 100)), ""},
		"compressed, unannounced":     {plain, false, data(writeOf(7, 0, k128, 100)), "it is compressed"},
		"compressed to nothing":       {all, false, data(writeOf(7, 0, k128, 0)), "has 0 bytes"},
		"compressed to more":          {all, false, data(writeOf(7, 0, 512, 513)), "has 513 bytes"},

		"embedded":                        {all, false, data(embeddedOf(7, k128, k128, k128, 112)), ""},
		"embedded, unannounced":           {plain, false, data(embeddedOf(7, 0, k128, k128, 112)), "cannot have this type"},
		"embedded in a raw stream":        {raw | featureEmbedded, false, [][]byte{rangeOf(0, 32), rawObject(), embeddedOf(7, 0, 4096, 4096, 112)}, "cannot have this type"},
		"embedded, too large":             {all, false, data(embeddedOf(7, 0, k128, k128, 113)), "holds only 112"},
		"embedded, empty":                 {all, false, data(embeddedOf(7, 0, k128, k128, 0)), "it has no bytes"},
		"embedded, one byte":              {all, false, data(embeddedOf(7, 0, k128, k128, 1)), ""},
		"embedded, redacted":              {all, false, data(changed(embeddedOf(7, 0, k128, k128, 112), 41, 2)), "of kind 2"},
		"embedded, not compressed":        {all, false, data(changed(embeddedOf(7, 0, k128, k128, 112), 40, 2)), "compression 2, but"},
		"embedded, by default":            {all, false, data(changed(embeddedOf(7, 0, k128, k128, 112), 40, 0)), "compression 0, but"},
		"embedded, unknown algorithm":     {all, false, data(changed(embeddedOf(7, 0, k128, k128, 112), 40, 130)), "compression 130"},
		"compressed without an algorithm": {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 2)), "compression 2 and 100"},
		"unknown algorithm":               {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 130)), "compression 130"},
		"an empty block, compressed":      {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 4)), "compression 4"},
		"first algorithm":                 {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 3)), ""},
		"algorithm after the last":        {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 17)), "compression 17"},
		"zstd":                            {all, false, data(changed(writeOf(7, 0, k128, 100), 50, 16)), ""},
		"raw, not compressed":             {raw, false, [][]byte{rangeOf(0, 32), rawObject(), changed(writeOf(7, 0, 4096, 4096), 50, 2)}, ""},
		"raw, not compressed, shorter":    {raw, false, [][]byte{rangeOf(0, 32), rawObject(), changed(writeOf(7, 0, 4096, 512), 50, 2)}, "compression 2 and 512"},
		"embedded, another size":          {all, false, data(embeddedOf(7, 0, k128, 512, 112)), "512 uncompressed"},
		"embedded, a larger block":        {all, false, data(embeddedOf(7, 0, 2*k128, 2*k128, 112)), "to a block of"},
		"embedded spill block":            {all, false, data(embeddedOf(7, max64-2*512+1, 512, 512, 60), writeOf(7, 0, k128), embeddedOf(7, max64-2*512+1, 512, 512, 60)), "extended attributes as embedded data"},
		"embedded spill, another size":    {all, false, data(embeddedOf(7, max64-2*512+1, 512, 1024, 60)), "1024 uncompressed"},
		"embedded over data":              {all, false, data(writeOf(7, 0, k128), embeddedOf(7, 0, k128, k128, 112)), "was written"},
		"data over embedded":              {all, false, data(embeddedOf(7, 0, k128, k128, 112), writeOf(7, 0, k128)), "was written"},
		"largest spill":                   {plain, false, data(spillOf(7, maxBlock, 0)), ""},
		"spill without a block":           {plain, false, data(spillOf(7, 100, 0)), "block of 100 bytes"},
		"spill with another size":         {plain, false, data(spillOf(7, 512, 4096)), "4096 bytes for a block of 512"},
		"spill, unannounced":              {0, false, data(spillOf(7, 512, 0)), "cannot have this type"},
		"spill of a volume":               {plain, true, data(spillOf(7, 512, 0)), "cannot have this type"},
		"redaction":                       {plain, false, data(header(RecordRedact, 7, 0, 512, toGUID)), "cannot have this type"},
		"redaction, announced":            {plain | 1<<21, false, data(header(RecordRedact, 7, 0, 512, toGUID)), "cannot have this type"},
		"copy of other data":              {plain, false, data(header(RecordWriteByRef, 7, 0, 512, toGUID)), "cannot have this type"},
		"begin":                           {plain, false, [][]byte{beginOf(0, 2)}, "no such object"},

		"raw": {raw, false, [][]byte{rangeOf(0, 32), freeObjects(0, 7), rawObject(), freeOf(7, 3*4096, max64), spillOf(7, 512, 512), writeOf(7, 0, 4096, 4096), writeOf(7, 8192, 4096, 512),
			freeObjects(8, 24), rangeOf(32, 32), lastBlock(objectOf(33, 512, 0, 0, 1, 12, 1, 1), 0), rangeOf(64, 32)}, ""},
		"raw range twice":         {raw, false, [][]byte{rangeOf(32, 32), rangeOf(32, 32)}, "named object 63"},
		"raw range of a part":     {raw, false, [][]byte{rangeOf(32, 16)}, "not a block of slots"},
		"raw range of two halves": {raw, false, [][]byte{rangeOf(16, 32)}, "not a block of slots"},
		"raw range, not raw":      {plain, false, [][]byte{rangeOf(0, 32)}, "not raw"},
		"raw object, plain data":  {raw, false, [][]byte{rawObject(), writeOf(7, 0, 4096)}, "it is not raw"},
		"raw last block":          {raw, false, [][]byte{rawObject(), writeOf(7, 12288, 4096, 4096)}, "beyond the last block"},
		"raw spill":               {raw, false, [][]byte{rawObject(), spillOf(7, 512, 0)}, "has 0 bytes"},
		"raw spill, too large":    {raw, false, [][]byte{rawObject(), spillOf(7, 512, 513)}, "has 513 bytes"},
		"raw, no tree":            {raw, false, [][]byte{object}, "0 levels"},
		"raw bonus, truncated":    {raw, false, [][]byte{objectOf(7, 512, 168, 100, 1, 17, 1, 1)}, "168 of 100 bytes"},
		"raw bonus, too large":    {raw, false, [][]byte{objectOf(7, 512, 168, 321, 1, 17, 1, 1)}, "hold only 320"},
		"raw, small indirect":     {raw, false, [][]byte{objectOf(7, 512, 0, 0, 1, 11, 1, 1)}, "2^11 bytes"},
		"raw, large indirect":     {raw, false, [][]byte{objectOf(7, 512, 0, 0, 1, 18, 1, 1)}, "2^18 bytes"},
		"raw, many levels":        {raw, false, [][]byte{objectOf(7, 512, 0, 0, 1, 17, 13, 1)}, "13 levels"},
		"raw, many pointers":      {raw, false, [][]byte{objectOf(7, 512, 0, 0, 1, 17, 1, 4)}, "4 pointers"},
		"raw, tree too low":       {raw, false, [][]byte{lastBlock(objectOf(7, 512, 0, 0, 1, 17, 1, 3), 3)}, "but no block 3"},
		"raw, two levels":         {raw, false, [][]byte{lastBlock(objectOf(7, 512, 0, 0, 1, 17, 2, 3), 3*1024-1)}, ""},
		"raw, two levels full":    {raw, false, [][]byte{lastBlock(objectOf(7, 512, 0, 0, 1, 17, 2, 3), 3*1024)}, "but no block 3072"},
		"raw, highest tree":       {raw, false, [][]byte{lastBlock(objectOf(7, 512, 0, 0, 1, 17, 12, 3), max64)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := uint32(osFilesystem)
			if tt.volume {
				objects = osVolume
			}
			err := checkHeaders(t, beginOf(tt.features, objects), tt.records...)
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}

// TestCapturedStreamsPassRecordRules checks the streams that OpenZFS made. pkg/zfs/cli checks
// more of them in the guest.
func TestCapturedStreamsPassRecordRules(t *testing.T) {
	t.Parallel()
	for name, b := range allSamples(t) {
		require.NoError(t, checkStream(b), name)
	}
}

// checkStream checks all streams of a stream or package.
func checkStream(b []byte) error {
	var rules *RecordRules
	for s := NewStreamReader(bytes.NewReader(b)); ; {
		r, err := s.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case r.Type == RecordBegin && r.HeaderType() == compound:
		case r.Type == RecordBegin:
			rules = NewRecordRules(r)
		case rules != nil:
			if err := rules.Check(r); err != nil {
				return err
			}
			if r.Type == RecordEnd {
				rules = nil
			}
		}
	}
}

// FuzzRecordRules compares the rules with a model that remembers all objects that a stream declared
// and wrote.
func FuzzRecordRules(f *testing.F) {
	for _, b := range allSamples(f) {
		f.Add(b[:min(len(b), 16<<10)])
	}
	f.Add(append(beginOf(featureSpill, osFilesystem), bytes.Join([][]byte{objectOf(1, 512, 8, 0, 1), make([]byte, 8), writeOf(1, 0, 512), make([]byte, 512), freeObjects(1, 1)}, nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		type part struct{ from, to uint64 }
		var rules *RecordRules
		var raw bool
		named, wrote := []part{}, map[uint64][]part{}
		overlaps := func(in []part, p part) bool {
			for _, q := range in {
				if p.from < q.to && q.from < p.to {
					return true
				}
			}
			return false
		}
		for s := NewStreamReader(bytes.NewReader(b)); ; {
			r, err := s.Next()
			switch {
			case err != nil || r.Type == RecordBegin && rules != nil:
				return
			case r.Type == RecordBegin:
				rules, raw = NewRecordRules(r), r.Features()&featureRaw != 0
				continue
			case rules.Check(r) != nil:
				return
			}
			require.EqualValues(t, rules.toGUID, r.ToGUID())
			require.LessOrEqual(t, r.PayloadSize(), uint64(maxBlock))
			slots := part{r.Object(), r.Object() + r.Objects()}
			data := part{r.Offset(), r.Offset() + r.Length()}
			if r.Length() == math.MaxUint64 {
				data.to = math.MaxUint64
			}
			require.GreaterOrEqual(t, data.to, data.from)
			switch r.Type {
			case RecordObject, RecordFreeObjects:
				require.LessOrEqual(t, slots.to, uint64(maxObject))
				require.False(t, overlaps(named, slots), "%v names one of %v", slots, named)
				named = append(named, slots)
			case RecordWrite, RecordWriteEmbedded, RecordFree:
				require.NotEmpty(t, named)
				require.NotZero(t, r.Object())
				require.False(t, overlaps(wrote[r.Object()], data), "%v is about bytes of %v", data, wrote)
				if r.Type != RecordFree {
					require.LessOrEqual(t, r.PayloadSize(), max(r.Length(), maxEmbedded))
					wrote[r.Object()] = append(wrote[r.Object()], data)
				}
			case RecordSpill:
				require.LessOrEqual(t, r.PayloadSize(), r.Length())
			case RecordObjectRange:
				require.True(t, raw)
			case RecordEnd:
			default:
				t.Fatalf("%s passed", r.Type)
			}
		}
	})
}
