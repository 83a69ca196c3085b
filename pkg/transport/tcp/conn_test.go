package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
)

// pair returns both ends of one connection.
func pair(t testing.TB, mode Mode) (a, b *Conn) {
	t.Helper()
	da, db := pairLink(t, mode, 1)
	return da.Conns()[0], db.Conns()[0]
}

func pairLink(t testing.TB, mode Mode, streams int) (dialer, listener *Link) {
	t.Helper()
	l, err := Listen(t.Context(), Kernel{}, Offer{Mode: mode, Streams: streams, Address: "127.0.0.1", Deadline: unlimited}, nil)
	require.NoError(t, err)
	return connect(t, l, l.Ticket())
}

func block(p []byte) *Block {
	b := NewBlock(len(p), 0)
	b.SetLen(copy(b.Buffer(), p))
	return b
}

func TestFramesArriveUnchanged(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, mode)
			sizes := []int{1, HeaderSize, 16 << 10, 1 << 20, 300<<10 + 1, MaxRaw}
			go func() {
				for i, n := range sizes {
					_ = a.WriteFrame(Header{Kind: Data, Position: uint64(i), Raw: uint32(n)}, block(bytes.Repeat([]byte{byte(i)}, n)))
					_ = a.WriteControl(Alive, uint64(n), nil)
				}
				_ = a.WriteFrame(Header{Kind: Data, Flags: Zero, Position: 9, Raw: 1 << 31}, block(nil))
				_ = a.WriteEnd(Account{Bytes: 7, Frames: 8, Digested: true, Digest: [16]byte{1, 2}})
			}()
			in := NewBlock(MaxPayload, 0)
			for i, n := range sizes {
				h, err := b.ReadFrame(in)
				require.NoError(t, err)
				require.Equal(t, Header{Kind: Data, Payload: n, Position: uint64(i), Raw: uint32(n)}, h)
				require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, n), in.Payload()))
				h, err = b.ReadFrame(in)
				require.NoError(t, err)
				require.Equal(t, Header{Kind: Alive, Position: uint64(n)}, h)
			}
			h, err := b.ReadFrame(in)
			require.NoError(t, err)
			require.Equal(t, Zero, h.Flags)
			h, err = b.ReadFrame(in)
			require.NoError(t, err)
			require.Equal(t, End, h.Kind)
			account, err := ParseAccount(in.Payload())
			require.NoError(t, err)
			require.NoError(t, b.CheckEnd(account))
			require.EqualValues(t, len(sizes)+1, account.StreamFrames)
			account.StreamBytes--
			require.ErrorIs(t, b.CheckEnd(account), ErrTampered)
			_, err = b.ReadFrame(in)
			require.ErrorIs(t, err, errTruncated, "the end of the connection is not the end of the stream")
			require.ErrorIs(t, err, ErrConnectionLost)
			// The other direction is still open.
			require.NoError(t, b.WriteControl(Ack, 0, nil))
			h, err = a.ReadFrame(in)
			require.NoError(t, err)
			require.Equal(t, Ack, h.Kind)
		})
	}
}

// TestTLSKeyIsLimited expects that a TLS connection refuses to send more data than its key may encrypt, but
// still tells the other end why.
func TestTLSKeyIsLimited(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := pair(t, mode)
			go func() { _, _ = io.Copy(io.Discard, b.rw) }()
			a.keyed = 1 << 20
			data := block(make([]byte, 300<<10))
			var err error
			for range 10 {
				if err = a.WriteFrame(Header{Kind: Data, Raw: 300 << 10}, data); err != nil {
					break
				}
			}
			if mode != TLS {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrConnectionLost)
			require.ErrorContains(t, err, "stream 0, frame 3: connection lost: its key has encrypted 360 GiB")
			require.NoError(t, a.WriteControl(Abort, 0, []byte("reason")))
		})
	}
}

func TestBlockPrepend(t *testing.T) {
	t.Parallel()
	b := NewBlock(10, 312)
	b.SetLen(copy(b.Buffer(), "payload"))
	require.Equal(t, "held payload", string(b.Prepend([]byte("held "))))
	require.Equal(t, "payload", string(b.Payload()))
}

func TestPayloadLargerThanAgreed(t *testing.T) {
	t.Parallel()
	a, b := pair(t, Signed)
	go func() { _ = a.WriteFrame(Header{Kind: Data, Raw: 1001}, block(make([]byte, 1001))) }()
	_, err := b.ReadFrame(NewBlock(1000, 0))
	require.ErrorIs(t, err, ErrTampered)
	require.ErrorContains(t, err, "stream 0, frame 0")
}

func TestCloseEndsPeerImmediately(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := pairLink(t, mode, 2)
			read, write := make(chan error, 1), make(chan error, 1)
			in := NewBlock(100, 0)
			require.NoError(t, a.Conns()[0].WriteControl(Alive, 0, nil))
			_, err := b.Conns()[0].ReadFrame(in)
			require.NoError(t, err)
			go func() { _, err := b.Conns()[0].ReadFrame(in); read <- err }()
			go func() {
				for {
					if err := b.Conns()[1].WriteFrame(Header{Kind: Data, Raw: 1 << 20}, block(make([]byte, 1<<20))); err != nil {
						write <- err
						return
					}
				}
			}()
			require.Eventually(t, func() bool { return b.Conns()[1].WireBytes() > 1<<20 }, testenv.Timeout(), time.Millisecond)
			require.NoError(t, a.Close())
			for _, c := range []chan error{read, write} {
				select {
				case err := <-c:
					require.ErrorIs(t, err, ErrConnectionLost)
				case <-time.After(testenv.Timeout()):
					require.Fail(t, "the peer did not notice")
				}
			}
		})
	}
}

func TestAbortReachesBusyPeer(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := pairLink(t, mode, 2)
			b.Receiving()
			stop := make(chan error, 1)
			go func() { // the peer floods an end that never reads
				for {
					if err := a.Conns()[0].WriteFrame(Header{Kind: Data, Raw: 1 << 20}, block(make([]byte, 1<<20))); err != nil {
						stop <- err
						return
					}
				}
			}()
			require.Eventually(t, func() bool { return a.Conns()[0].WireBytes() > 1<<20 }, testenv.Timeout(), time.Millisecond)
			go func() {
				b.Interrupt()
				b.Abort(errors.New("disk full"))
			}()
			in := NewBlock(MaxControl, 0)
			h, err := a.Conns()[0].ReadFrame(in)
			require.NoError(t, err)
			require.Equal(t, Abort, h.Kind)
			require.Equal(t, "disk full", string(in.Payload()))
			a.Interrupt()
			require.ErrorIs(t, <-stop, ErrConnectionLost)
		})
	}
}

// TestAbortReachesSlowPeer expects that Abort waits longer than lingerTime for a peer that takes data
// slowly. The peer gets all data and the reason.
func TestAbortReachesSlowPeer(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			testenv.Widen(t, 200*time.Millisecond, func(linger time.Duration) error {
				l, _ := listen(t, Offer{Mode: mode, Streams: 1, Socket: transport.Socket{Window: 64 << 10}})
				a, b := connect(t, l, l.Ticket())
				a.linger = linger
				const frames = 50
				go func() {
					for range frames {
						_ = a.Conns()[0].WriteFrame(Header{Kind: Data, Raw: 16 << 10}, block(make([]byte, 16<<10)))
					}
					a.Abort(errors.New("disk full"))
				}()
				in := NewBlock(16<<10, 0)
				for range frames {
					if h, err := b.Conns()[0].ReadFrame(in); err != nil || h.Kind != Data {
						return fmt.Errorf("a frame of kind %d: %v", h.Kind, err)
					}
					time.Sleep(linger / 5)
				}
				if h, err := b.Conns()[0].ReadFrame(in); err != nil || h.Kind != Abort {
					return fmt.Errorf("a frame of kind %d: %v", h.Kind, err)
				}
				require.Equal(t, "disk full", string(in.Payload()))
				return b.Close()
			})
		})
	}
}

// TestFinishKeepsReadsInterrupted expects that Finish, which sets a deadline, does not revive
// interrupted reads.
func TestFinishKeepsReadsInterrupted(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			a, b := pairLink(t, mode, 1)
			require.NoError(t, a.Conns()[0].WriteFrame(Header{Kind: Data, Raw: 1000}, block(make([]byte, 1000))))
			b.Interrupt()
			require.NoError(t, b.Conns()[0].tcp.SetReadDeadline(time.Time{}))
			_, err := b.Conns()[0].ReadFrame(NewBlock(MaxPayload, 0))
			require.ErrorIs(t, err, ErrConnectionLost)
		})
	}
}

// TestInterruptEndsHalfFrame expects an interrupt to end the read of a frame that arrives in parts, although the next
// part is there and Finish has set a later deadline.
func TestInterruptEndsHalfFrame(t *testing.T) {
	t.Parallel()
	_, b := pairLink(t, Plain, 1)
	c := b.Conns()[0]
	c.rw = &partly{Conn: c.rw, read: func(p []byte) (int, error) {
		c.interrupt(false)
		require.NoError(t, c.tcp.SetReadDeadline(time.Time{}))
		return 1, nil
	}}
	_, err := c.ReadHeader(NewBlock(100, 0))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// partly is a connection whose reads return what read returns.
type partly struct {
	net.Conn
	read func(p []byte) (int, error)
}

func (c *partly) Read(p []byte) (int, error) { return c.read(p) }

func TestSilence(t *testing.T) {
	t.Parallel()
	// A slow machine may delay a frame by more than the limit. The test then retries with a
	// longer one.
	for silence := 100 * time.Millisecond; ; silence *= 2 {
		a, b := pair(t, Signed)
		b.SetSilence(silence)
		in := NewBlock(100, 0)
		var err error
		heard := 0
		for ; heard < 4 && err == nil; heard++ { // in total, they take longer than the limit
			time.AfterFunc(silence/2, func() { _ = a.WriteControl(Alive, 0, nil) })
			_, err = b.ReadFrame(in)
		}
		if err != nil {
			require.Less(t, silence, testenv.Timeout(), "frame %d: %v", heard, err)
			continue
		}
		_, err = b.ReadFrame(in)
		require.ErrorIs(t, err, ErrConnectionLost)
		require.ErrorContains(t, err, "no data from the other host for "+silence.String())
		return
	}
}

func TestSplice(t *testing.T) {
	t.Parallel()
	a, b := pair(t, Plain)
	want := make([]byte, 5<<20)
	for i := range want {
		want[i] = byte(i >> 10)
	}
	outR, outW, err := os.Pipe()
	require.NoError(t, err)
	defer outR.Close()
	var got []byte
	all := make(chan error, 1)
	go func() {
		var err error
		got, err = io.ReadAll(outR)
		all <- err
	}()
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			i := uint64(0)
			for p := range slices.Chunk(want, 100_000) {
				if err := a.WriteFrame(Header{Kind: Data, Position: i, Raw: uint32(len(p))}, block(p)); err != nil {
					return err
				}
				i++
			}
			return a.WriteEnd(Account{})
		}()
	}()
	pipe, err := outW.SyscallConn()
	require.NoError(t, err)
	in := NewBlock(MaxControl, 0)
	var full WaitTimer
	for {
		h, err := b.ReadHeader(in)
		require.NoError(t, err)
		if h.Kind == End {
			require.NoError(t, b.ReadPayload(h, in), "the end is authenticated too")
			break
		}
		require.NoError(t, b.SpliceTo(pipe, h.Payload, &full))
	}
	require.NoError(t, <-sent)
	require.NoError(t, outW.Close())
	require.NoError(t, <-all)
	require.True(t, bytes.Equal(want, got))
	require.Equal(t, a.WireBytes(), b.WireBytes())
}

// TestSpliceNeverSleepsWithBytesWaiting expects that the receiver never sleeps while bytes are waiting.
// The consumer may drain the pipe at any moment, even right after a splice found it full.
func TestSpliceNeverSleepsWithBytesWaiting(t *testing.T) {
	t.Parallel()
	const rounds, size = 60, 1 << 20
	a, b := pair(t, Plain)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	pipe, err := w.SyscallConn()
	require.NoError(t, err)
	go func() {
		for i := range rounds {
			if a.WriteFrame(Header{Kind: Data, Position: uint64(i), Raw: size}, block(make([]byte, size))) != nil {
				return
			}
			time.Sleep(time.Millisecond) // all bytes were sent, so the socket signals nothing more
		}
	}()
	go func() {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 60<<10))
	}()
	in := NewBlock(MaxControl, 0)
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			for range rounds {
				h, err := b.ReadHeader(in)
				if err == nil {
					err = b.SpliceTo(pipe, h.Payload, new(WaitTimer))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(testenv.Timeout()):
		require.Fail(t, "the receiver sleeps")
	}
}

func TestSpliceErrorsNameTheSide(t *testing.T) {
	t.Parallel()
	t.Run("sink's pipe broke", func(t *testing.T) {
		t.Parallel()
		a, b := pair(t, Plain)
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer w.Close()
		require.NoError(t, r.Close())
		go func() { _ = a.WriteFrame(Header{Kind: Data, Raw: 1000}, block(make([]byte, 1000))) }()
		h, err := b.ReadHeader(NewBlock(100, 0))
		require.NoError(t, err)
		pipe, err := w.SyscallConn()
		require.NoError(t, err)
		err = b.SpliceTo(pipe, h.Payload, new(WaitTimer))
		require.ErrorIs(t, err, ErrPipe)
		require.NotErrorIs(t, err, ErrConnectionLost)
	})
	t.Run("network lost while receiving", func(t *testing.T) {
		t.Parallel()
		a, b := pair(t, Plain)
		r, w, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		defer w.Close()
		pipe, err := w.SyscallConn()
		require.NoError(t, err)
		time.AfterFunc(20*time.Millisecond, func() { _ = a.tcp.Close() })
		err = b.SpliceTo(pipe, 1000, new(WaitTimer))
		require.ErrorIs(t, err, ErrConnectionLost)
		require.NotErrorIs(t, err, ErrPipe)
	})
}

func TestEveryChangeIsDetected(t *testing.T) {
	t.Parallel()
	key := bytes.Repeat([]byte{3}, tagKeySize)
	// The bytes of three frames from one end.
	write := func() []byte {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		peer, err := l.Accept()
		require.NoError(t, err)
		defer peer.Close()
		send, err := newTagger(key)
		require.NoError(t, err)
		conn := newConn(0, Signed, c.(*net.TCPConn), send, nil)
		for i := range 3 {
			require.NoError(t, conn.WriteFrame(Header{Kind: Data, Position: uint64(i), Raw: 40}, block(bytes.Repeat([]byte{byte(i)}, 40))))
		}
		require.NoError(t, c.Close())
		all, err := io.ReadAll(peer)
		require.NoError(t, err)
		return all
	}
	good := write()
	const frame = HeaderSize + 40 + TagSize
	require.Len(t, good, 3*frame)
	// read returns the number of valid frames, and the error after them.
	read := func(p []byte) (n int, err error) {
		receive, err := newTagger(key)
		require.NoError(t, err)
		conn := &Conn{mode: Signed, tcp: new(net.TCPConn), rw: &scripted{Reader: bytes.NewReader(p)}, receive: receive}
		b := NewBlock(1000, 0)
		for {
			h, err := conn.ReadFrame(b)
			if err != nil {
				return n, err
			}
			require.EqualValues(t, n, h.Position)
			require.Equal(t, bytes.Repeat([]byte{byte(n)}, 40), b.Payload())
			n++
		}
	}
	n, err := read(good)
	require.Equal(t, 3, n)
	require.ErrorIs(t, err, errTruncated)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			n, err := read(bad)
			require.Equal(t, i/frame, n, "byte %d bit %d: a changed frame was accepted", i, bit)
			if errors.Is(err, errTruncated) {
				// A changed bit enlarged the length.
				require.Contains(t, []int{4, 5, 6, 7}, i%frame, "byte %d bit %d", i, bit)
				continue
			}
			require.ErrorIs(t, err, ErrTampered, "byte %d bit %d", i, bit)
		}
	}
	for name, bad := range map[string][]byte{
		"dropped":    append(bytes.Clone(good[:frame]), good[2*frame:]...),
		"duplicated": append(bytes.Clone(good[:2*frame]), good[frame:]...),
		"swapped":    append(append(bytes.Clone(good[:frame]), good[2*frame:]...), good[frame:2*frame]...),
	} {
		n, err := read(bad)
		require.ErrorIs(t, err, ErrTampered, name)
		require.ErrorContains(t, err, fmt.Sprintf("stream 0, frame %d", n))
		require.LessOrEqual(t, n, 2, name)
	}
	for i := range good {
		n, err := read(good[:i])
		require.Equal(t, i/frame, n)
		require.ErrorIs(t, err, errTruncated)
	}
}

// scripted is a connection that only reads.
type scripted struct {
	net.Conn
	io.Reader
}

func (s *scripted) Read(p []byte) (int, error) { return s.Reader.Read(p) }
