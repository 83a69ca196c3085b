package transfertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
)

// Random returns n incompressible bytes, the same for each n.
func Random(n int) []byte {
	p := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)}).Read(p)
	return p
}

// Links returns both ends of a link over loopback. via, if not nil, returns the address of a
// proxy for the listener's address.
func Links(t testing.TB, mode tcp.Mode, streams int, via func(address string) string) (sender, receiver *tcp.Link) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Timeout())
	defer cancel()
	l, err := tcp.Listen(ctx, tcp.Kernel{}, tcp.Offer{Mode: mode, Streams: streams, Address: "127.0.0.1", Deadline: testenv.Timeout()}, nil)
	require.NoError(t, err)
	ticket := l.Ticket()
	if via != nil {
		ticket.Address = via(ticket.Address)
	}
	type dialled struct {
		link *tcp.Link
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		link, err := tcp.Dial(ctx, tcp.Kernel{}, ticket)
		done <- dialled{link, err}
	}()
	receiver, err = l.Accept(ctx)
	d := <-done
	require.NoError(t, d.err)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	t.Cleanup(func() { _ = d.link.Close(); _ = receiver.Close() })
	return d.link, receiver
}

// Text returns n bytes that compress well.
func Text(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "block %d of the dataset has %d bytes of nothing much\n", i, i%77)
	}
	return b.Bytes()[:n]
}

// CPUTime returns the processor time that this process has used.
func CPUTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Source is a transfer.Source of bytes in memory.
type Source struct {
	// Chunk bounds the bytes of a Read; 0 = no bound, negative = random.
	Chunk int
	// Err is the producer's error after the last byte; nil = it ends well.
	Err error
	// Pause delays each Read.
	Pause time.Duration
	// Hang makes the producer hang after the last byte.
	Hang bool

	mu     sync.Mutex
	rest   []byte
	closed chan struct{}
	once   sync.Once
}

// NewSource returns a Source of p, which it does not modify.
func NewSource(p []byte) *Source { return &Source{rest: p, closed: make(chan struct{})} }

// errClosed is the error of a closed Source.
var errClosed = errors.New("closed")

func (s *Source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Pause > 0 {
		select {
		case <-s.closed:
		case <-time.After(s.Pause):
		}
	}
	select {
	case <-s.closed:
		return 0, errClosed
	default:
	}
	if len(s.rest) == 0 {
		switch {
		case s.Hang:
			<-s.closed
			return 0, errClosed
		case s.Err != nil:
			return 0, s.Err
		}
		return 0, io.EOF
	}
	switch {
	case s.Chunk > 0:
		p = p[:min(len(p), s.Chunk)]
	case s.Chunk < 0:
		p = p[:1+rand.IntN(len(p))]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// Close closes the Source. A hanging Read returns.
func (s *Source) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *Source) Name() string { return "memory source" }

// Tamper modifies the bytes that a dialer sends on one connection. p starts at offset at. It
// returns the bytes to pass on, and whether to end the connection.
type Tamper func(at int64, p []byte) (out []byte, end bool)

// Honest passes bytes on unmodified.
func Honest(_ int64, p []byte) ([]byte, bool) { return p, false }

// At returns a Tamper for the byte at offset where. It calls f with the bytes before it, and
// with the bytes from it on.
func At(where int64, f func(before, after []byte) ([]byte, bool)) Tamper {
	return func(at int64, p []byte) ([]byte, bool) {
		if where < at || where >= at+int64(len(p)) {
			return p, false
		}
		return f(p[:where-at], p[where-at:])
	}
}

// Proxied returns a function that starts a TCP proxy for an address and returns the proxy's. It
// calls each for every connection, numbered from 0. The listener's bytes pass unmodified.
func Proxied(t testing.TB, each func(connection int) Tamper) func(string) string {
	return func(address string) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		var n atomic.Int32
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go relay(c, address, each(int(n.Add(1))-1))
			}
		}()
		return l.Addr().String()
	}
}

func relay(down net.Conn, address string, change Tamper) {
	defer down.Close()
	up, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer up.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(down, up)
		_ = down.(*net.TCPConn).CloseWrite()
	})
	p := make([]byte, 32<<10)
	var at int64
	for {
		n, err := down.Read(p)
		if n > 0 {
			out, end := change(at, p[:n])
			at += int64(n)
			if _, werr := up.Write(out); werr != nil {
				return
			}
			if end {
				_ = up.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, down)
				break
			}
		}
		if err != nil {
			_ = up.(*net.TCPConn).CloseWrite()
			break
		}
	}
	wg.Wait()
}
