package mux

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// pair returns both ends of a connection. accept is called for streams that the client opens.
func pair(t *testing.T, accept func(*Stream, string)) (client, server *Session) {
	t.Helper()
	up, upWriter := io.Pipe()
	down, downWriter := io.Pipe()
	client, server = New(upWriter, ""), New(downWriter, "")
	server.Accept = accept
	var ended sync.WaitGroup
	ended.Go(func() { _ = server.Run(up); _ = up.Close(); _ = downWriter.Close() })
	ended.Go(func() { _ = client.Run(down); _ = down.Close(); _ = upWriter.Close() })
	t.Cleanup(func() {
		_, _ = upWriter.Close(), downWriter.Close()
		ended.Wait()
	})
	return client, server
}

// echo returns what arrives on a stream.
func echo(s *Stream, _ string) {
	go func() {
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	}()
}

// TestStreamsCarryData expects all bytes of many streams to arrive unchanged in both directions, and each end of data.
func TestStreamsCarryData(t *testing.T) {
	t.Parallel()
	client, _ := pair(t, echo)
	var all sync.WaitGroup
	for i, size := range []int{0, 1, maxData, maxData + 1, window, 3*window + 7, 100, 5 << 20} {
		all.Go(func() {
			s, err := client.Open(t.Context(), "a")
			require.NoError(t, err)
			defer s.Close()
			data := make([]byte, size)
			_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
			go func() {
				for rest := data; len(rest) > 0; {
					n := min(len(rest), 1+rand.IntN(200_000))
					if _, err := s.Write(rest[:n]); err != nil {
						return
					}
					rest = rest[n:]
				}
				_ = s.CloseWrite()
			}()
			got, err := io.ReadAll(s)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got), "%d bytes, got %d", size, len(got))
		})
	}
	all.Wait()
}

// TestControlStreamsExist expects the control stream at both ends from the start.
func TestControlStreamsExist(t *testing.T) {
	t.Parallel()
	client, server := pair(t, nil)
	go func() { _, _ = client.Control().Write([]byte("question")) }()
	b := make([]byte, 8)
	_, err := io.ReadFull(server.Control(), b)
	require.NoError(t, err)
	require.Equal(t, "question", string(b))
}

// TestFullStreamDelaysNoOther expects that a stream whose reader has stopped takes one window and delays no other.
func TestFullStreamDelaysNoOther(t *testing.T) {
	t.Parallel()
	full := make(chan *Stream, 1)
	client, _ := pair(t, func(s *Stream, address string) {
		if address == "full" {
			full <- s
			return
		}
		echo(s, address)
	})
	stopped, err := client.Open(t.Context(), "full")
	require.NoError(t, err)
	written := make(chan int, 1)
	go func() {
		n, err := stopped.Write(make([]byte, 2*window))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		written <- n
	}()
	other, err := client.Open(t.Context(), "echo")
	require.NoError(t, err)
	go func() { _, _ = other.Write(make([]byte, 3*window)); _ = other.CloseWrite() }()
	n, err := io.Copy(io.Discard, other)
	require.NoError(t, err)
	require.EqualValues(t, 3*window, n)
	require.NoError(t, stopped.SetWriteDeadline(time.Unix(1, 0)))
	require.Equal(t, window, <-written)
	require.Zero(t, stopped.Acked())
	s := <-full
	_, err = io.CopyN(io.Discard, s, window/2)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return stopped.Acked() >= window/4 }, testenv.Timeout(), time.Millisecond)
	require.NoError(t, stopped.SetWriteDeadline(time.Time{}))
	k, err := stopped.Write(make([]byte, window/4))
	require.NoError(t, err)
	require.Equal(t, window/4, k)
}

// TestClose expects that Close ends reads and writes of both ends, and that data before an end of data stays readable.
func TestClose(t *testing.T) {
	t.Parallel()
	accepted := make(chan *Stream, 3)
	client, _ := pair(t, func(s *Stream, address string) { accepted <- s })
	s, err := client.Open(t.Context(), "x")
	require.NoError(t, err)
	peer := <-accepted
	_, err = s.Write([]byte("last words"))
	require.NoError(t, err)
	require.NoError(t, s.CloseWrite())
	require.NoError(t, s.CloseWrite())
	_, err = s.Write([]byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	got, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.Equal(t, "last words", string(got))
	require.Eventually(t, func() bool { _, err = peer.Write([]byte("x")); return err != nil }, testenv.Timeout(), time.Millisecond)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)

	s, err = client.Open(t.Context(), "x")
	require.NoError(t, err)
	peer = <-accepted
	require.NoError(t, peer.Refuse("no such\nlistener"))
	_, err = s.Read(make([]byte, 1))
	require.ErrorContains(t, err, "no such")
	require.NotContains(t, err.Error(), "\n")
	_, err = s.Write([]byte("x"))
	require.ErrorContains(t, err, "no such")

	s, err = client.Open(t.Context(), "x")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = (<-accepted).Read(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	client.mu.Lock()
	defer client.mu.Unlock()
	require.Len(t, client.streams, 1, "only the control stream is left")
}

// TestEndOfConnectionFailsStreams expects that the end of the connection fails every stream, without an end of data.
func TestEndOfConnectionFailsStreams(t *testing.T) {
	t.Parallel()
	client, server := pair(t, echo)
	s, err := client.Open(t.Context(), "x")
	require.NoError(t, err)
	server.End(errors.New("stopped"))
	go func() { _, _ = client.Control().Write([]byte("x")) }()
	_, err = server.Control().Read(make([]byte, 1))
	require.ErrorContains(t, err, "stopped")
	client.End(io.EOF)
	_, err = s.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = s.Write(make([]byte, 1))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = client.Open(t.Context(), "x")
	require.Error(t, err)
}

// TestOpenEndsWithContext expects that an end that reads nothing does not hold those who open a stream.
func TestOpenEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck, writer := io.Pipe()
		s := New(writer, "")
		defer func() { s.End(net.ErrClosed); _ = stuck.Close() }()
		why := errors.New("no longer needed")
		ctx, cancel := context.WithCancelCause(t.Context())
		var failed sync.WaitGroup
		for range 2 * maxQueued {
			failed.Go(func() {
				if _, err := s.Open(ctx, "x"); err != nil {
					require.ErrorIs(t, err, why)
				}
			})
		}
		synctest.Wait()
		cancel(why)
		failed.Wait()
	})
}

// slowWriter takes a second for each write.
type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	return w.Buffer.Write(p)
}

// TestFlush expects that everything that was written before the end reaches a slow connection, and that an end that
// reads nothing delays Flush no longer than its limit.
func TestFlush(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Session){"open": func(*Session) {}, "ended": func(s *Session) { s.End(io.EOF) }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &slowWriter{}
				s := New(out, "hello")
				_, err := s.Control().Write([]byte("last words"))
				require.NoError(t, err)
				end(s)
				s.Flush(time.Minute)
				require.Equal(t, "hello"+string(frame(controlID, kindData, "last words")), out.String())
				s.End(io.EOF)
				s.Flush(time.Minute)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		stuck, writer := io.Pipe()
		s := New(writer, "hello")
		began := time.Now()
		s.Flush(time.Minute)
		s.End(io.EOF)
		s.Flush(time.Minute)
		require.Equal(t, 2*time.Minute, time.Since(began))
		_ = stuck.Close()
	})
}

// TestFirstEndCounts expects that the control stream keeps the reason for the end.
func TestFirstEndCounts(t *testing.T) {
	t.Parallel()
	s := New(io.Discard, "")
	why := errors.New("stopped")
	s.End(why)
	s.End(io.EOF)
	_, err := s.Control().Read(make([]byte, 1))
	require.ErrorIs(t, err, why)
}

// TestDeadlines expects reads and writes to end at their deadlines, also while the connection takes nothing, and to
// work after a later one.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck, writer := io.Pipe()
		s := New(writer, "")
		defer func() { s.End(net.ErrClosed); _ = stuck.Close() }()
		c := s.Control()
		began := time.Now()
		require.NoError(t, c.SetDeadline(began.Add(time.Minute)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, time.Minute, time.Since(began))
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		n, err := c.Write(make([]byte, window))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, n, window)
		require.Equal(t, 2*time.Minute, time.Since(began))
		require.ErrorIs(t, c.CloseWrite(), os.ErrDeadlineExceeded)
		require.NoError(t, c.SetDeadline(time.Time{}))
		require.NoError(t, c.receive(kindData, []byte("x")))
		_, err = c.Read(make([]byte, 1))
		require.NoError(t, err)
	})
}

// frame returns a frame.
func frame(id uint32, kind byte, payload string) []byte {
	b := binary.BigEndian.AppendUint32(nil, id)
	b = binary.BigEndian.AppendUint32(b, uint32(kind)<<24|uint32(len(payload)))
	return append(b, payload...)
}

// TestExpiredWriteKeepsItsRoom expects that a write that a deadline ends takes no room of the other end.
func TestExpiredWriteKeepsItsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stuck, writer := io.Pipe()
		s := New(writer, "")
		defer func() { s.End(net.ErrClosed); _ = stuck.Close() }()
		sent := 0
		for range 100 {
			require.NoError(t, s.Control().SetWriteDeadline(time.Now().Add(time.Second)))
			n, _ := s.Control().Write(make([]byte, maxData))
			sent += n
		}
		require.Equal(t, window-sent, s.Control().credit)
	})
}

// TestFramesOfALiar expects a session to end at a frame that no correct peer sends.
func TestFramesOfALiar(t *testing.T) {
	t.Parallel()
	full := bytes.Repeat(frame(1, kindData, string(make([]byte, maxData))), window/maxData)
	for name, tt := range map[string]struct {
		frames [][]byte
		accept bool
	}{
		"unknown kind":          {frames: [][]byte{frame(1, 9, "")}},
		"kind zero":             {frames: [][]byte{frame(1, 0, "")}},
		"long data":             {frames: [][]byte{frame(1, kindData, string(make([]byte, maxData+1)))}},
		"long reason":           {frames: [][]byte{frame(1, kindReset, string(make([]byte, maxReason+1)))}},
		"long address":          {accept: true, frames: [][]byte{frame(2, kindOpen, string(make([]byte, maxAddress+1)))}},
		"end with data":         {frames: [][]byte{frame(1, kindEnd, "x")}},
		"stream 0":              {frames: [][]byte{frame(0, kindData, "x")}},
		"stream not opened":     {frames: [][]byte{frame(2, kindData, "x")}},
		"opened at the client":  {frames: [][]byte{frame(2, kindOpen, "x")}},
		"opened twice":          {accept: true, frames: [][]byte{frame(2, kindOpen, "x"), frame(2, kindOpen, "x")}},
		"falling number":        {accept: true, frames: [][]byte{frame(3, kindOpen, "x"), frame(2, kindOpen, "x")}},
		"control opened":        {accept: true, frames: [][]byte{frame(1, kindOpen, "x")}},
		"more than the window":  {frames: [][]byte{full, frame(1, kindData, "x")}},
		"data after the end":    {frames: [][]byte{frame(1, kindEnd, ""), frame(1, kindData, "x")}},
		"window that is full":   {frames: [][]byte{frame(1, kindWindow, "\x00\x00\x00\x01")}},
		"window of 0":           {frames: [][]byte{frame(1, kindWindow, "\x00\x00\x00\x00")}},
		"huge window":           {frames: [][]byte{frame(1, kindWindow, "\xff\xff\xff\xff")}},
		"window of three bytes": {frames: [][]byte{frame(1, kindWindow, "\x00\x00\x01")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := New(io.Discard, "")
			if tt.accept {
				s.Accept = func(*Stream, string) {}
			}
			err := s.Run(bytes.NewReader(bytes.Join(tt.frames, nil)))
			require.ErrorIs(t, err, errFrame)
			_, err = s.Open(t.Context(), "x")
			require.ErrorIs(t, err, errFrame)
		})
	}
	s := New(io.Discard, "")
	require.ErrorIs(t, s.Run(bytes.NewReader(frame(1, kindData, "abc")[:10])), io.ErrUnexpectedEOF)
	require.ErrorIs(t, New(io.Discard, "").Run(bytes.NewReader(nil)), io.EOF)
}

// TestStreamsAreLimited expects that a session refuses more than MaxStreams streams, and that a closed one makes room.
func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	server := New(io.Discard, "")
	var accepted []*Stream
	server.Accept = func(s *Stream, _ string) { accepted = append(accepted, s) }
	for i := range 3 * MaxStreams {
		require.NoError(t, server.take(uint32(i+2), kindOpen, []byte("x")))
	}
	require.Len(t, accepted, MaxStreams)
	require.NoError(t, accepted[0].Close())
	require.NoError(t, server.take(1000, kindOpen, []byte("x")))
	require.Len(t, accepted, MaxStreams+1)

	client := New(io.Discard, "")
	var first *Stream
	for range MaxOpened {
		s, err := client.Open(t.Context(), "x")
		require.NoError(t, err)
		first = cmp.Or(first, s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := client.Open(ctx, "x")
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	_, err = client.Open(t.Context(), "x")
	require.NoError(t, err)
	_, err = client.Open(ctx, "x")
	require.ErrorIs(t, err, context.Canceled)
	_, err = client.Open(t.Context(), string(make([]byte, maxAddress+1)))
	require.ErrorContains(t, err, "address of 65 bytes")
}

// TestRefusedStreamsAreBounded expects a session to end if the other end opens streams without end and reads nothing.
func TestRefusedStreamsAreBounded(t *testing.T) { // not parallel: it counts goroutines
	for _, refuse := range []bool{false, true} {
		stuck, writer := io.Pipe()
		s := New(writer, "")
		s.Accept = func(s *Stream, _ string) {
			if refuse {
				_ = s.Refuse("no")
			}
		}
		before := runtime.NumGoroutine()
		var input bytes.Buffer
		for i := range uint32(100_000) {
			input.Write(frame(i+2, kindOpen, "x"))
		}
		require.ErrorIs(t, s.Run(&input), errFrame)
		require.LessOrEqual(t, runtime.NumGoroutine(), before+2*maxResets)
		_ = stuck.Close()
	}
}

// TestUnreadDataCostsItsSize expects that data in frames of any size costs little more memory than its bytes.
func TestUnreadDataCostsItsSize(t *testing.T) { // not parallel: it measures the heap
	for _, sizes := range [][]int{{1}, {maxData}, {1, maxData}, {maxData/2 + 1}, {100}} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		s := New(io.Discard, "")
		payload := make([]byte, maxData)
		sent := 0
		for i := 0; ; i++ {
			n := sizes[i%len(sizes)]
			if sent+n > window || i == 200_000 {
				break
			}
			require.NoError(t, s.take(controlID, kindData, payload[:n]))
			sent += n
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(s)
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(sent+sent/8+1<<20), "frames of %v", sizes)
		s.End(net.ErrClosed)
	}
}

// FuzzFrames expects that no input panics a session or makes it keep more than its windows.
func FuzzFrames(f *testing.F) {
	f.Add(frame(1, kindData, "x"))
	f.Add(append(frame(2, kindOpen, "a"), frame(2, kindReset, "b")...))
	f.Add(append(frame(5, kindOpen, "a"), frame(5, kindEnd, "")...))
	f.Fuzz(func(t *testing.T, input []byte) {
		s := New(io.Discard, "")
		s.Accept = func(s *Stream, address string) {
			if len(address)%2 == 0 {
				_ = s.Refuse(address)
			}
		}
		require.Error(t, s.Run(bytes.NewReader(input)))
	})
}

// BenchmarkStream measures one stream over two pipes of the kernel.
func BenchmarkStream(b *testing.B) {
	up, upWriter, err := os.Pipe()
	require.NoError(b, err)
	down, downWriter, err := os.Pipe()
	require.NoError(b, err)
	client, server := New(upWriter, ""), New(downWriter, "")
	go func() { _ = server.Run(up) }()
	go func() { _ = client.Run(down) }()
	go func() { _, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, server.Control(), make([]byte, 1<<20)) }()
	data := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := client.Control().Write(data); err != nil {
			b.Fatal(err)
		}
	}
	client.End(net.ErrClosed)
	server.End(net.ErrClosed)
	_, _, _, _ = up.Close(), upWriter.Close(), down.Close(), downWriter.Close()
}
