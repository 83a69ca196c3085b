package transfertest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

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
