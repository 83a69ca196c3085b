package tcp

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// readCounter counts the reads of a connection.
type readCounter struct {
	net.Conn
	reads int
}

func (c *readCounter) Read(p []byte) (int, error) { c.reads++; return c.Conn.Read(p) }

// slowPair returns the receiving end of a connection whose sender writes the frames in small
// pieces.
func slowPair(t *testing.T, mode Mode, frames ...[]byte) (receiver *Conn) {
	t.Helper()
	a, b := pair(t, mode)
	a.rw = slowWriter{a.tcp.(*net.TCPConn)}
	go func() {
		for i, p := range frames {
			_ = a.WriteFrame(Header{Kind: Data, Position: uint64(i), Raw: uint32(len(p))}, block(p))
		}
	}()
	return b
}

type slowWriter struct{ *net.TCPConn }

func (d slowWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = d.TCPConn.Write(p[n:min(n+1000, len(p))])
		n += k
		time.Sleep(20 * time.Microsecond)
	}
	return n, err
}

// TestReaderIsNotWokenForEachPacket expects that frames that arrive in packets wake their reader
// once for many packets, and for the last one, even if it is small.
func TestReaderIsNotWokenForEachPacket(t *testing.T) {
	t.Parallel()
	sizes := []int{600_001, 1, 131_073, 40_000, 3}
	frames := make([][]byte, len(sizes))
	for i, n := range sizes {
		frames[i] = make([]byte, n)
	}
	b := slowPair(t, Signed, frames...)
	reads := &readCounter{Conn: b.rw}
	b.rw = reads
	in := NewBlock(1<<20, 0)
	for _, n := range sizes {
		h, err := b.ReadFrame(in)
		require.NoError(t, err)
		require.Equal(t, n, h.Payload)
	}
	require.Less(t, reads.reads, 100, "of 775 pieces")
}

// TestSplicingIsNotWokenForEachPacket expects the same as TestReaderIsNotWokenForEachPacket if the
// payload is spliced to a pipe and inspected from time to time.
func TestSplicingIsNotWokenForEachPacket(t *testing.T) {
	t.Parallel()
	const size, part = 600_001, 9_999
	b := slowPair(t, Plain, make([]byte, size), make([]byte, part))
	out, into, err := os.Pipe()
	require.NoError(t, err)
	defer out.Close()
	defer into.Close()
	woken := make(chan int)
	go func() {
		reads, got := 0, 0
		for room := make([]byte, 1<<20); got < size-part; reads++ {
			n, err := out.Read(room)
			if got += n; err != nil {
				break
			}
		}
		woken <- reads
	}()
	raw, err := into.SyscallConn()
	require.NoError(t, err)
	in := NewBlock(1<<20, 0)
	h, err := b.ReadHeader(in)
	require.NoError(t, err)
	require.Equal(t, size, h.Payload)
	require.NoError(t, b.SpliceTo(raw, size-part, new(WaitTimer)))
	require.NoError(t, b.ReadPart(make([]byte, part)))
	h, err = b.ReadFrame(in)
	require.NoError(t, err)
	require.Equal(t, part, h.Payload)
	require.Less(t, <-woken, 100, "of 591 pieces")
}
