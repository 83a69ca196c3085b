package tcp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzHeader(f *testing.F) {
	for _, h := range []Header{
		{Kind: Data, Payload: 5, Raw: 5, Position: 1 << 60}, {Kind: Data, Flags: Zero, Raw: 1 << 31},
		{Kind: Data, Flags: Compressed, Payload: 9, Raw: MaxRaw}, {Kind: End, Payload: accountSize}, {Kind: Ack},
	} {
		b := make([]byte, HeaderSize)
		h.put(b)
		f.Add(b)
	}
	f.Add(bytes.Repeat([]byte{0xff}, HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != HeaderSize {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, h.Payload, MaxPayload)
		again := make([]byte, HeaderSize)
		h.put(again)
		require.Equal(t, b, again, "a header has one encoding")
	})
}

func FuzzAccount(f *testing.F) {
	f.Add(Account{Bytes: 1, Frames: 2, Digested: true, Digest: [16]byte{3}, StreamBytes: 4, StreamFrames: 5}.Append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ParseAccount(b)
		if err != nil {
			require.ErrorIs(t, err, ErrTampered)
			return
		}
		require.Equal(t, b, a.Append(nil))
	})
}

// FuzzReadFrame feeds arbitrary bytes to a connection, and expects no panic and no bytes without a
// valid tag.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte{}, true)
	b := make([]byte, HeaderSize, 200)
	Header{Kind: Data, Payload: 100, Raw: 100}.put(b)
	f.Add(b[:200], true)
	f.Add(b[:200], false)
	f.Fuzz(func(t *testing.T, p []byte, signed bool) {
		receive, err := newTagger(make([]byte, tagKeySize))
		require.NoError(t, err)
		c := &Conn{mode: Plain, tcp: new(net.TCPConn), rw: &scripted{Reader: bytes.NewReader(p)}, receive: receive}
		if signed {
			c.mode = Signed
		}
		in := NewBlock(1<<10, 0)
		for {
			h, err := c.ReadFrame(in)
			if err != nil {
				return
			}
			require.False(t, signed || h.Kind != Data, "a frame without a key was accepted")
		}
	})
}

// FuzzWelcome sends arbitrary bytes to a listener.
func FuzzWelcome(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.0\r\n\r\n"), true)
	accepters := map[bool]accepter{}
	for tls, mode := range map[bool]Mode{false: Signed, true: TLS} {
		s := &session{secret: make([]byte, secretSize), mode: mode, streams: 2}
		dial, err := s.handshaker()
		require.NoError(f, err)
		accepters[tls], err = s.accepter()
		require.NoError(f, err)
		a, b := net.Pipe()
		go func() { _, _ = dial(pipeSocket{b}, 1) }()
		first := make([]byte, 4<<10)
		n, err := a.Read(first)
		require.NoError(f, err)
		_ = a.Close()
		f.Add(append(first[:n:n], make([]byte, proofSize)...), tls)
	}
	f.Fuzz(func(t *testing.T, p []byte, tls bool) {
		a, b := net.Pipe()
		go func() {
			_, _ = a.Write(p)
			_ = a.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, a) }()
		_, err := accepters[tls](pipeSocket{b}, func() {})
		_ = b.Close()
		require.Error(t, err)
	})
}

// pipeSocket is an end of a net.Pipe.
type pipeSocket struct{ net.Conn }

func (p pipeSocket) CloseWrite() error { return p.Close() }

func (pipeSocket) SyscallConn() (syscall.RawConn, error) { return nil, errors.ErrUnsupported }
