package hoststest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// slow creates a stream of 16 MiB that takes 16 seconds, so that a test can interrupt it. The ring
// is so small that both ends work all the time.
func slow(p testPool) stream {
	ds := p.Create("a")
	p.Write(ds, "file", 16<<20, 1)
	p.Snapshot(ds, "x")
	return stream{
		send:    zfs.SendSpec{Dataset: ds, To: "x", Flags: packed()},
		receive: zfs.ReceiveSpec{Target: p.Dataset("b")},
		options: transfer.Options{BandLimit: 1 << 20, Buffer: 256 << 10},
	}
}

// enough is the number of bytes after which a slow stream is disturbed. The first progress report
// comes after half a second.
const enough = 3 << 19

// requireClosed requires that the listener is closed.
func requireClosed(t *testing.T, address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	}, testenv.Timeout(), 20*time.Millisecond, "%s still accepts", address)
}

func (s *suite) testCancel(t *testing.T, p testPool) {
	st := slow(p)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var moved <-chan struct{}
	st.receiving, moved = after(enough)
	ended := s.start(ctx, t, st)
	wait(t, moved)
	cancel()
	o := ended()
	// One end may see the other's connection close before its own cancellation arrives.
	for _, err := range []error{o.sendErr, o.receiveErr} {
		require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, tcp.ErrConnectionLost), err)
	}
	require.True(t, errors.Is(o.sendErr, context.Canceled) || errors.Is(o.receiveErr, context.Canceled))
	require.NotErrorIs(t, o.receiveErr, hosts.ErrLost)
	requireEnded(t, p)
	requireClosed(t, o.ticket.Address)

	// Received data is not sent again.
	st.receiving, st.options = nil, transfer.Options{}
	st.send.Token = requireResumable(t, p, st.receive.Target, st.send.To)
	rest, err := hosts.Estimate(t.Context(), s.source, []zfs.SendSpec{st.send})
	require.NoError(t, err)
	require.Less(t, rest[0], uint64(15<<20))
	o = s.move(t, st)
	require.Less(t, o.sent.Bytes, int64(15<<20))
	st.send.Token = ""
	s.requireSame(t, p, st.send, st.receive.Target)
	requireFiles(t, p, st.send.Dataset, st.receive.Target, "file")
}

// testCancelOneEnd cancels only one host, and expects the other host to report it.
func (s *suite) testCancelOneEnd(t *testing.T, p testPool) {
	st := slow(p)
	for _, end := range []string{"source", "target"} {
		for _, mode := range []tcp.Mode{tcp.Signed, tcp.Plain} {
			target := p.Dataset(end + string(mode))
			ctx, cancel := context.WithCancel(t.Context())
			ticket, err := hosts.Call(t.Context(), s.target, hosts.OpOffer, tcp.Offer{Mode: mode, Streams: 2, Address: "127.0.0.1", Deadline: testenv.Timeout()})
			require.NoError(t, err)
			sending, receiving := t.Context(), t.Context()
			if end == "source" {
				sending = ctx
			} else {
				receiving = ctx
			}
			progress, moved := after(enough)
			var sendErr, receiveErr error
			sent, received := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(sent)
				_, sendErr = hosts.Call(sending, s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: st.send, Options: st.options}, To: hosts.Dial{Ticket: ticket}})
			}()
			go func() {
				defer close(received)
				_, receiveErr = hosts.Watch(receiving, s.target, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: s.into(t, st.send, target), Options: st.options}}, progress)
			}()
			wait(t, moved)
			cancel()
			<-sent
			<-received
			cancelled, other := sendErr, receiveErr
			if end == "target" {
				cancelled, other = receiveErr, sendErr
			}
			require.ErrorIs(t, cancelled, context.Canceled)
			require.ErrorIs(t, other, tcp.ErrConnectionLost, "%s %s", end, mode)
			require.NotErrorIs(t, other, context.Canceled)
			requireEnded(t, p)
			requireResumable(t, p, target, st.send.To)
		}
	}
}

func (s *suite) testCancelAlone(t *testing.T, p testPool) {
	ctx, cancel := context.WithCancel(t.Context())
	ticket, err := hosts.Call(t.Context(), s.target, hosts.OpOffer, tcp.Offer{Mode: tcp.TLS, Streams: 1, Address: "127.0.0.1", Deadline: testenv.Timeout()})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := hosts.Call(ctx, s.target, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: p.Dataset("b")}}})
		ended <- err
	}()
	time.Sleep(100 * time.Millisecond)
	require.Empty(t, running(t, p.Root()), "nothing runs before the other host connects")
	cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(testenv.Timeout()):
		require.FailNow(t, "it still waits")
	}
	requireClosed(t, ticket.Address)
	require.False(t, exists(t, p, p.Dataset("b")))
}

// children returns the running child processes of this one.
func children(t *testing.T) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // ended
		}
		// PID (NAME) STATE PPID …; a name can contain any character.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if fields[1] == strconv.Itoa(os.Getpid()) && fields[0] != "Z" {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func (s *suite) testClose(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	st := slow(p)
	for _, closes := range []string{"source", "target"} {
		before := children(t)
		source, target := s.open(t), s.open(t)
		for _, each := range []hosts.Host{source, target} {
			_, err := hosts.Call(t.Context(), each, hosts.OpFacts, hosts.None{}) // starts the permanent processes of a host
			require.NoError(t, err)
		}
		idle, err := hosts.Call(t.Context(), target, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Streams: 1, Address: "127.0.0.1", Deadline: testenv.Timeout()})
		require.NoError(t, err)
		st.receive.Target = p.Dataset(closes)
		var moved <-chan struct{}
		st.receiving, moved = after(enough)
		ended := start(t.Context(), t, source, target, st)
		wait(t, moved)
		if closes == "source" {
			require.NoError(t, source.Close())
		} else {
			require.NoError(t, target.Close())
		}
		o := ended()
		require.Error(t, o.sendErr)
		require.Error(t, o.receiveErr)
		require.NoError(t, source.Close())
		require.NoError(t, target.Close())
		require.Eventually(t, func() bool { return len(children(t)) <= len(before) }, testenv.Timeout(), 20*time.Millisecond, "before: %v", before)
		require.Empty(t, running(t, st.receive.Target))
		requireClosed(t, idle.Address)
		requireResumable(t, p, st.receive.Target, st.send.To)
		_, err = hosts.Call(t.Context(), target, hosts.OpList, hosts.ListQuery{Dataset: p.Name})
		require.Error(t, err, "a closed host runs no operation")
	}
}

// kill kills the processes with these words in their arguments.
func kill(t *testing.T, word string) {
	t.Helper()
	pids := running(t, word)
	require.Len(t, pids, 1)
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL))
}

func (s *suite) testSourceRefuses(t *testing.T, p testPool) {
	ds := p.Create("e")
	o := s.start(t.Context(), t, stream{send: zfs.SendSpec{Dataset: ds, To: "none"}, receive: zfs.ReceiveSpec{Target: p.Dataset("f")}})()
	requireKind(t, o.sendErr, zfs.NotFound)
	var peer *transfer.PeerError
	require.ErrorAs(t, o.receiveErr, &peer)
	require.Contains(t, peer.Text, "e@none", "the error of the other host")
	require.False(t, exists(t, p, p.Dataset("f")))
}

func (s *suite) testSourceKilled(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	st := slow(p)
	for _, mode := range []tcp.Mode{tcp.Signed, tcp.TLS, tcp.Plain} {
		t.Run(string(mode), func(t *testing.T) {
			st.mode, st.receive.Target = mode, p.Dataset("b-"+string(mode))
			var moved <-chan struct{}
			st.receiving, moved = after(enough)
			ended := s.start(t.Context(), t, st)
			wait(t, moved)
			kill(t, st.send.Dataset+"@x")
			o := ended()
			requireKind(t, o.sendErr, zfs.Killed)
			require.ErrorAs(t, o.receiveErr, new(*transfer.PeerError))
			requireEnded(t, p)
			requireResumable(t, p, st.receive.Target, st.send.To)
		})
	}
	t.Run("in a local copy", func(t *testing.T) {
		target := p.Dataset("copy")
		progress, moved := after(enough)
		ended := make(chan error, 1)
		go func() {
			_, err := hosts.Watch(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: st.send, Options: st.options}, To: hosts.ReceiveStream{Spec: s.into(t, st.send, target)}}, progress)
			ended <- err
		}()
		wait(t, moved)
		kill(t, st.send.Dataset+"@x")
		requireKind(t, <-ended, zfs.Killed)
		requireEnded(t, p)
		requireResumable(t, p, target, st.send.To)
	})
}

func (s *suite) testTargetRefuses(t *testing.T, p testPool) {
	st := slow(p)
	st.receive.Target = p.Dataset("none/b")
	o := s.start(t.Context(), t, st)()
	requireKind(t, o.receiveErr, zfs.NotFound)
	var peer *transfer.PeerError
	require.ErrorAs(t, o.sendErr, &peer)
	require.Contains(t, peer.Text, "none/b", "the error of the other host")
	requireEnded(t, p)
}

func (s *suite) testTargetKilled(t *testing.T, pool *zfstest.Pool) {
	p := realPool{pool}
	st := slow(p)
	for _, mode := range []tcp.Mode{tcp.Signed, tcp.TLS, tcp.Plain} {
		t.Run(string(mode), func(t *testing.T) {
			st.mode, st.receive.Target = mode, p.Dataset("b-"+string(mode))
			var moved <-chan struct{}
			st.receiving, moved = after(enough)
			ended := s.start(t.Context(), t, st)
			wait(t, moved)
			kill(t, st.receive.Target)
			o := ended()
			requireKind(t, o.receiveErr, zfs.Killed)
			require.ErrorAs(t, o.sendErr, new(*transfer.PeerError))
			requireEnded(t, p)
			requireResumable(t, p, st.receive.Target, st.send.To)
		})
	}
}

func (s *suite) testNoSpace(t *testing.T, p testPool) {
	ds := p.Create("a")
	p.Write(ds, "file", 12<<20, 1)
	p.Snapshot(ds, "x")
	full := p.Create("full", "-o", "quota=5242880")
	o := s.start(t.Context(), t, stream{send: zfs.SendSpec{Dataset: ds, To: "x"}, receive: zfs.ReceiveSpec{Target: full + "/b"}, streams: 3})()
	requireKind(t, o.receiveErr, zfs.NoSpace)
	require.ErrorAs(t, o.sendErr, new(*transfer.PeerError))
	require.False(t, exists(t, p, full+"/b@x"))
	requireEnded(t, p)

	_, err := hosts.Call(t.Context(), s.source, hosts.OpTransfer, hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: ds, To: "x"}}, To: hosts.ReceiveStream{Spec: s.into(t, zfs.SendSpec{Dataset: ds, To: "x"}, full+"/c")}})
	requireKind(t, err, zfs.NoSpace)
	requireEnded(t, p)
}

// testBusy expects that a second receive into a dataset is refused without harm to the first.
func (s *suite) testBusy(t *testing.T, p testPool) {
	st := slow(p)
	unlimited := st
	unlimited.options = transfer.Options{}
	s.move(t, unlimited)

	// The first transfer must last until the second reaches the target.
	const size = 8 << 20
	last, tries := "x", 0
	testenv.Widen(t, 4*time.Second, func(lasts time.Duration) error {
		tries++
		next := fmt.Sprint("y", tries)
		p.Write(st.send.Dataset, "file"+next, size, 2)
		p.Snapshot(st.send.Dataset, next)
		st.send.From, st.send.To, last = "@"+last, next, next
		limited, moved := st, (<-chan struct{})(nil)
		limited.options.BandLimit = int64(size / lasts.Seconds())
		limited.receiving, moved = after(1 << 20)
		first := s.start(t.Context(), t, limited)
		wait(t, moved)
		st.options = transfer.Options{}
		second := s.start(t.Context(), t, st)()
		o := first()
		require.NoError(t, o.sendErr)
		require.NoError(t, o.receiveErr)
		s.requireSame(t, p, st.send, st.receive.Target)
		// A resumable receive marks the dataset from its start.
		var e *zfs.Error
		if !errors.As(second.receiveErr, &e) || e.Kind != zfs.Busy && e.Kind != zfs.PartialState {
			return fmt.Errorf("the target was not busy: %w", second.receiveErr)
		}
		require.ErrorAs(t, second.sendErr, new(*transfer.PeerError))
		return nil
	})
}
