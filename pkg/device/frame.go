package device

import "zxfer/pkg/transport/tcp"

// frame is a frame in the queue between a connection and the device.
type frame struct {
	header tcp.Header
	block  *tcp.Block
}

// appendTrailer appends sums and a mark to the n bytes of payload in b.
func appendTrailer(b *tcp.Block, n int, sums []Sum, mark Mark) {
	room := b.Room()
	for _, s := range sums {
		n += copy(room[n:], s[:])
	}
	b.SetLen(n + copy(room[n:], mark[:]))
}

// parseSums parses a payload of sums.
func parseSums(p []byte) []Sum {
	sums := make([]Sum, len(p)/tcp.SumSize)
	for i := range sums {
		copy(sums[i][:], p[i*tcp.SumSize:])
	}
	return sums
}

// splitTrailer splits a payload. The header's check has ensured that it is long
// enough.
func splitTrailer(p []byte) (data []byte, sum Sum, mark Mark) {
	n := len(p) - tcp.TrailSize
	return p[:n], Sum(p[n:]), Mark(p[n+tcp.SumSize:])
}
