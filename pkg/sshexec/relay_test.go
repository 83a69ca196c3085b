package sshexec

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/testenv"
)

func itoa(n int) string { return strconv.Itoa(n) }

// listen serves local connections with f.
func listen(t *testing.T, f func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().String()
}

// relayed connects to an address through a relay over o.
func relayed(ctx context.Context, t *testing.T, o *other, address string) *net.TCPConn {
	t.Helper()
	local, err := ListenRelay(ctx, o.Options, address, func(error) {})
	require.NoError(t, err)
	c, err := net.Dial("tcp", local)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testenv.Timeout())))
	return c.(*net.TCPConn)
}

func relayHost(t *testing.T) *other {
	t.Helper()
	o := newOther(t, "sh", "echo Welcome")
	o.install()
	return o
}

func TestRelayClosesDirectionsSeparately(t *testing.T) {
	t.Parallel()
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	for name, c := range map[string]struct {
		far  func(*net.TCPConn)
		near func(*testing.T, *net.TCPConn)
	}{
		"local end first": {
			func(c *net.TCPConn) {
				all, _ := io.ReadAll(c)
				_, _ = c.Write(all)
			},
			func(t *testing.T, c *net.TCPConn) {
				go func() { _, _ = c.Write(data); _ = c.CloseWrite() }()
				got, err := io.ReadAll(c)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
			},
		},
		"remote end first": { // like a sender that waits for its acknowledgement
			func(c *net.TCPConn) {
				_, _ = c.Write(data)
				_ = c.CloseWrite()
				if got, _ := io.ReadAll(c); string(got) != "stored" {
					_ = c.SetLinger(0) // reset
				}
			},
			func(t *testing.T, c *net.TCPConn) {
				got, err := io.ReadAll(c)
				require.NoError(t, err)
				require.True(t, bytes.Equal(data, got))
				_, err = c.Write([]byte("stored"))
				require.NoError(t, err)
				require.NoError(t, c.CloseWrite())
			},
		},
		"remote end closes immediately": {
			func(*net.TCPConn) {},
			func(t *testing.T, c *net.TCPConn) {
				got, err := io.ReadAll(c)
				require.NoError(t, err)
				require.Empty(t, got)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := relayHost(t)
			near := relayed(t.Context(), t, o, listen(t, c.far))
			c.near(t, near)
			_ = near.Close()
			requireEnded(t, o.pid())
		})
	}
}

func TestRelayedConnectionsAreIndependent(t *testing.T) {
	t.Parallel()
	o := relayHost(t)
	local, err := ListenRelay(t.Context(), o.Options, listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) }), func(error) {})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			c, err := net.Dial("tcp", local)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			want := "connection " + itoa(i)
			_, _ = io.WriteString(c, want)
			_ = c.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(c); err != nil || string(got) != want {
				t.Errorf("got %q instead of %q: %v", got, want, err)
			}
		})
	}
	wg.Wait()
}

func TestRelayEndsWithContext(t *testing.T) {
	t.Parallel()
	o := relayHost(t)
	connected := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	c := relayed(ctx, t, o, listen(t, func(c *net.TCPConn) { close(connected); _, _ = io.Copy(io.Discard, c) }))
	<-connected
	cancel()
	_, err := io.ReadAll(c)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	requireEnded(t, o.pid())
	require.Eventually(t, func() bool {
		again, err := net.Dial("tcp", c.RemoteAddr().String())
		if err == nil {
			_ = again.Close()
		}
		return err != nil
	}, testenv.Timeout(), 10*time.Millisecond, "the listener is not closed")
}

func TestFailedRelayIsALostConnection(t *testing.T) {
	t.Parallel()
	address := testenv.RefusingAddress(t)
	for name, c := range map[string]struct {
		prepare func(*other)
		address string
		logged  string
	}{
		"no listener":     {func(*other) {}, address, "connection refused"},
		"not loopback":    {func(*other) {}, "192.0.2.1:80", "only loopback addresses are allowed"},
		"no remote zxfer": {func(o *other) { o.program("zxfer", "exit 1") }, address, "zxfer was deleted there, or replaced"},
		"no remote shell": {func(o *other) { o.Command = "/no/such/rsh" }, address, "cannot start the remote shell"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			if name == "no remote zxfer" {
				c.prepare(o)
			} else {
				o.install()
				c.prepare(o)
			}
			conn := relayed(t.Context(), t, o, c.address)
			got, _ := io.ReadAll(conn)
			require.Empty(t, got)
			require.Contains(t, o.logged(), c.logged)
		})
	}
}

// TestHostWithoutRelaysReportsIt expects that a host without relays reports it immediately.
// Otherwise, a client would retry.
func TestHostWithoutRelaysReportsIt(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	o.remote("exec zxfer agent") // a forced command
	refused := make(chan error, 1)
	local, err := ListenRelay(t.Context(), o.Options, "127.0.0.1:1", func(err error) { refused <- err })
	require.NoError(t, err)
	c, err := net.Dial("tcp", local)
	require.NoError(t, err)
	defer c.Close()
	err = <-refused
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "always starts an agent")
}

// TestRelaysAreBounded expects a limit of remote shells, because every local user can connect to
// the listener.
func TestRelaysAreBounded(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	started := filepath.Join(t.TempDir(), "started")
	o.remote("echo >>" + started + "; exec cat")
	local, err := ListenRelay(t.Context(), o.Options, "127.0.0.1:1", func(error) {})
	require.NoError(t, err)
	dropped := make(chan struct{}, 2*maxRelays)
	for range 2 * maxRelays {
		c, err := net.Dial("tcp", local)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			_, _ = io.ReadAll(c)
			dropped <- struct{}{}
		}()
	}
	for range maxRelays {
		<-dropped
	}
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(started)
		return len(text) == maxRelays
	}, testenv.Timeout(), 10*time.Millisecond)
}

func TestServeRelayAcceptsOnlyLoopback(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"192.0.2.1:80", "0.0.0.0:80", "[::]:80", "localhost:80", "127.0.0.1", "", "[2001:db8::1]:80", "[::ffff:192.0.2.1]:80"} {
		err := ServeRelay(t.Context(), address, strings.NewReader(""), io.Discard)
		require.ErrorContains(t, err, "only loopback addresses are allowed", "%q", address)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
	}
}

func TestServeRelayEndsWithContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	address := listen(t, func(c *net.TCPConn) { cancel(); _, _ = io.Copy(io.Discard, c) })
	in, w := io.Pipe()
	defer w.Close()
	require.Error(t, ServeRelay(ctx, address, in, io.Discard))
}

func TestChunks(t *testing.T) {
	t.Parallel()
	data := strings.Repeat("x", 3*maxChunk+1)
	var crossed, got bytes.Buffer
	require.NoError(t, sendChunks(&crossed, strings.NewReader(data)))
	whole := crossed.String()
	require.NoError(t, receiveChunks(&got, &crossed))
	require.Equal(t, data, got.String())
	for name, c := range map[string]struct{ in, want string }{
		"nothing":   {"", "the relay ended: EOF"},
		"no end":    {whole[:len(whole)-4], "the relay ended: EOF"},
		"truncated": {whole[:100], "the relay ended: unexpected EOF"},
		"too large": {"\x7f\xff\xff\xff", "chunk of 2147483647 bytes"},
	} {
		require.ErrorContains(t, receiveChunks(io.Discard, strings.NewReader(c.in)), c.want, name)
	}
}
