package zfs

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// filesOf returns a full stream of n objects of one block each, whose payload has a size.
func filesOf(n int, payload uint64) []byte {
	const object = 4096
	out := beginOf(featureSpill|featureCompressed, osFilesystem)
	copy(out[beginName:], "tank/a@x")
	for i := range uint64(n) {
		out = append(out, objectOf(object+i, maxBlock, 8, 0, 1)...)
		out = append(out, make([]byte, 8)...)
		out = append(out, writeOf(object+i, 0, maxBlock, payload)...)
		out = append(out, make([]byte, payload)...)
	}
	return append(out, header(RecordEnd, 0, 0, 0, 0, toGUID)...)
}

// BenchmarkGate measures the cost of the gate for each byte of a stream, in pieces of 1 MiB. The
// rate of large payloads has no meaning, because the gate skips them.
func BenchmarkGate(b *testing.B) {
	spec := ReceiveSpec{Target: "vault/a", Arrival: Arrival{Snapshots: []SnapshotID{{"x", toGUID}}}}
	for _, payload := range []uint64{512, 4 << 10, 16 << 10, 128 << 10, 1 << 20} {
		stream := filesOf(max(1, 64<<20/int(payload+2*RecordSize)), payload)
		b.Run(fmt.Sprintf("payload=%d", payload), func(b *testing.B) {
			b.SetBytes(int64(len(stream)))
			for b.Loop() {
				g, err := NewGate(spec)
				require.NoError(b, err)
				for piece := range slices.Chunk(stream, 1<<20) {
					require.NoError(b, g.Check(piece))
				}
			}
		})
	}
}

// BenchmarkFletcher4 measures the checksum that zfs receive verifies, to decide whether the
// gate can afford it.
func BenchmarkFletcher4(b *testing.B) {
	data := noise(1<<20, 1)
	b.SetBytes(int64(len(data)))
	var a, c, d, e uint64
	for b.Loop() {
		for p := data; len(p) >= 4; p = p[4:] {
			a += uint64(binary.LittleEndian.Uint32(p))
			c += a
			d += c
			e += d
		}
	}
	_ = e
}
