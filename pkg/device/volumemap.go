package device

// dataMap marks the parts of a volume that may hold data: one bit for each granule. All others are
// zeros. zfs send names all holes of a volume in each incremental stream, also holes that never
// held data. Without the map, each copy of changes would zero them again.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_traverse.c (send_holes_without_birth_time)
type dataMap struct {
	size int64
	bits []byte
}

// A map has at most maxGranules granules of at least minGranule bytes.
const (
	maxGranules = 1 << 16
	minGranule  = 64 << 10
)

// granule returns the length of a granule of a volume with size bytes.
func granule(size int64) int64 {
	g := int64(minGranule)
	for size > g*maxGranules {
		g *= 2
	}
	return g
}

// dataMapBytes returns the length of the bits of a volume with size bytes.
func dataMapBytes(size int64) int {
	g := granule(size)
	return int(((size+g-1)/g + 7) / 8)
}

// newDataMap returns a map without data.
func newDataMap(size int64) dataMap { return dataMap{size, make([]byte, dataMapBytes(size))} }

// resized returns a copy of the map for a volume of another size. Added bytes are zeros.
func (m dataMap) resized(size int64) dataMap {
	out := newDataMap(size)
	g := granule(m.size)
	for at := int64(0); at < min(m.size, size); at += g {
		if m.has(at) {
			out.mark(at, min(g, size-at))
		}
	}
	return out
}

// has reports whether the granule with a byte may hold data.
func (m dataMap) has(off int64) bool {
	i := off / granule(m.size)
	return m.bits[i/8]&(1<<(i%8)) != 0
}

// mark marks a range as data.
func (m dataMap) mark(off, n int64) {
	g := granule(m.size)
	for i := off / g; n > 0 && i <= (off+n-1)/g; i++ {
		m.bits[i/8] |= 1 << (i % 8)
	}
}

// clear marks the granules within a range as zeros.
func (m dataMap) clear(off, n int64) {
	g, end := granule(m.size), off+n
	for i := (off + g - 1) / g; i*g < end && min((i+1)*g, m.size) <= end; i++ {
		m.bits[i/8] &^= 1 << (i % 8)
	}
}

// data returns the parts of a range that may hold data.
func (m dataMap) data(off, n int64) (out []Range) {
	g, end := granule(m.size), off+n
	for off < end {
		next := min((off/g+1)*g, end)
		if m.has(off) {
			out = joinRange(out, Range{off, next - off})
		}
		off = next
	}
	return out
}
