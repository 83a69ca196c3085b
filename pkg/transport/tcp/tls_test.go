package tcp

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCorkGrows expects that a connection reads into a small buffer until a read fills it.
func TestCorkGrows(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer out.Close()
	in, err := l.Accept()
	require.NoError(t, err)
	defer in.Close()
	k := newFrameBuffer(in.(*net.TCPConn))
	read := func(sent int) {
		text := make([]byte, sent)
		for i := range text {
			text[i] = byte(i * 31)
		}
		_, err := out.Write(text)
		require.NoError(t, err)
		got := make([]byte, sent)
		for n := 0; n < sent; n += 1000 { // as TLS does, less than is available
			_, err = io.ReadFull(k, got[n:min(n+1000, sent)])
			require.NoError(t, err)
		}
		require.Equal(t, text, got)
	}
	read(1000)
	require.Equal(t, initialReadSize, k.in.Size())
	read(8 * initialReadSize)
	read(1)
	require.Equal(t, frameBufferSize, k.in.Size())
}
