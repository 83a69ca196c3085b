package tcp

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counting counts the reads of a connection.
type counting struct {
	net.Conn
	reads int
}

func (c *counting) Read(p []byte) (int, error) { c.reads++; return c.Conn.Read(p) }

// dribbled is a connection and its receiving end. What is written on the sending end
// by others than a Conn comes in small pieces.
func dribbled(t *testing.T, mode Mode, frames ...[]byte) (receiver *Conn) {
	t.Helper()
	a, b := pair(t, mode)
	a.rw = dribble{a.tcp}
	go func() {
		for i, p := range frames {
			_ = a.WriteFrame(Header{Kind: Data, Position: uint64(i), Raw: uint32(len(p))}, block(p))
		}
	}()
	return b
}

type dribble struct{ *net.TCPConn }

func (d dribble) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = d.TCPConn.Write(p[n:min(n+1000, len(p))])
		n += k
		time.Sleep(20 * time.Microsecond)
	}
	return n, err
}

// Frames that come by the packet wake their reader for many packets at once, and for
// the last one, however small.
func TestReaderIsNotWokenForEachPacket(t *testing.T) {
	t.Parallel()
	sizes := []int{600_001, 1, 131_073, 40_000, 3}
	frames := make([][]byte, len(sizes))
	for i, n := range sizes {
		frames[i] = make([]byte, n)
	}
	b := dribbled(t, Signed, frames...)
	reads := &counting{Conn: b.rw}
	b.rw = reads
	in := NewBlock(1<<20, 0)
	for _, n := range sizes {
		h, err := b.ReadFrame(in)
		require.NoError(t, err)
		require.Equal(t, n, h.Payload)
	}
	require.Less(t, reads.reads, 100, "of 775 pieces")
}

// The same where the payload goes into a pipe, and is looked at now and then.
func TestSplicingIsNotWokenForEachPacket(t *testing.T) {
	t.Parallel()
	const size, part = 600_001, 9_999
	b := dribbled(t, Plain, make([]byte, size), make([]byte, part))
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
