package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"sync"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// maxOffers limits the number of unused listeners. A job has one for each stream that is about to
// start. The limit keeps a client from taking all ports of the host.
const maxOffers = 256

func (l *Local) Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.offers, func(_ string, ln *tcp.Listener) bool { return ln.Failed() })
	if len(l.offers) >= maxOffers {
		return tcp.Ticket{}, fmt.Errorf("%d listeners already wait for transfers", len(l.offers))
	}
	ln, err := tcp.Listen(l.life, l.stack, o, l.log)
	if err != nil {
		return tcp.Ticket{}, err
	}
	t := ln.Ticket()
	l.offers[t.Session] = ln
	return t, nil
}

// Transfer does a host's part of a Task. It connects before it starts a process, so a peer that
// never connects costs nothing.
func (l *Local) Transfer(ctx context.Context, t Task, progress func(transfer.Progress)) (res Result, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := t.check(); err != nil {
		return res, err
	}
	if end, ok := t.attached(); ok {
		return l.moveAttached(ctx, end, t, progress)
	}
	sends, err := l.connect(ctx, t.To)
	if err != nil {
		return res, err
	}
	receives, err := l.connect(ctx, t.From)
	if err != nil {
		return res, err
	}
	link := cmp.Or(sends, receives)
	if link != nil {
		defer link.Close()
	}
	d, ok := t.device()
	switch {
	case kind(t.Moves()) == nothing:
		return res, l.finishTest(ctx, link)
	case ok:
		d, err := device.Copy(ctx, d, link, l.std, progress)
		return Result{Result: d.Result, Device: &d.Device}, err
	case kind(t.Moves()) == noise && link != nil:
		return moveNoise(ctx, t, link)
	}
	return l.moveStream(ctx, l, t, link, progress)
}

// connect opens the connections of an end. It returns nil if the end is not a connection.
func (l *Local) connect(ctx context.Context, end any) (*tcp.Link, error) {
	switch e := end.(type) {
	case Dial:
		link, err := tcp.Dial(ctx, cmp.Or(e.Through, l.stack), e.Ticket)
		return link, notConnected(err)
	case Accept:
		ln, err := l.take(e.Session)
		if err != nil {
			return nil, err
		}
		link, err := ln.Accept(ctx)
		l.mu.Lock()
		delete(l.accepting, e.Session)
		l.mu.Unlock()
		if err != nil {
			_ = ln.Close() // no other reference is left
		}
		return link, notConnected(err)
	}
	return nil, nil
}

// notConnected marks the error of a connection as ErrNotConnected, unless this host refuses it whatever the path.
func notConnected(err error) error {
	if err == nil || fault.ClassOf(err) == fault.Refused {
		return err
	}
	return NotConnected(err)
}

// ErrNoListener means that a host has no listener for a session. It restarted since it offered one.
var ErrNoListener = errors.New("no listener exists for session")

// take removes and returns an offered listener, which can be used once.
func (l *Local) take(session string) (*tcp.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln := l.offers[session]
	if ln == nil {
		return nil, fmt.Errorf("%w %q", ErrNoListener, session)
	}
	delete(l.offers, session)
	l.accepting[session] = ln
	return ln, nil
}

// Forward passes a stream of the remote shell to the listener at an address. If the listener is not one of this
// process, and own is not set, Forward connects to it on the loopback interface, and returns when both directions have
// ended. On error the caller still owns the stream.
func (l *Local) Forward(ctx context.Context, address string, s tcp.Socket, own bool) error {
	if ln := l.listenerAt(address); ln != nil {
		ln.Take(s)
		return nil
	}
	if ap, err := netip.ParseAddrPort(address); own || err != nil || !ap.Addr().IsLoopback() {
		return fmt.Errorf("no listener of this agent is at %q", cut(address))
	}
	ctx, cancel := l.bound(ctx)
	defer cancel()
	c, err := l.stack.Dial(ctx, address, transport.Socket{})
	if err != nil {
		return err
	}
	defer c.Close()
	defer s.Close()
	defer context.AfterFunc(ctx, func() { _, _ = s.Close(), c.Close() })()
	var up sync.WaitGroup
	pass := func(to, from tcp.Socket) {
		if _, err := io.Copy(to, from); err != nil { // without its end, neither side takes it for complete
			_, _ = s.Close(), c.Close()
			return
		}
		_ = to.CloseWrite()
	}
	up.Go(func() { pass(c, s) })
	pass(s, c)
	up.Wait()
	return nil
}

// listenerAt returns the listener of this process at an address, or nil.
func (l *Local) listenerAt(address string) *tcp.Listener {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, listeners := range []map[string]*tcp.Listener{l.offers, l.accepting} {
		for _, ln := range listeners {
			if ln.Ticket().Address == address {
				return ln
			}
		}
	}
	return nil
}

// finishTest closes a link that carries nothing. It reads to the end, because the proof of the
// other end may still arrive.
func (l *Local) finishTest(ctx context.Context, link *tcp.Link) error {
	if link == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = link.Close() }) // Finish ignores ctx
	defer stop()
	link.Finish()
	return context.Cause(ctx)
}

// moveNoise measures a link.
func moveNoise(ctx context.Context, t Task, link *tcp.Link) (res Result, err error) {
	if n, sends := t.From.(Noise); sends {
		res.Result, err = probe.SendNoise(ctx, link, n.Time)
	} else {
		res.Result, err = probe.ReceiveNoise(ctx, link)
	}
	return res, err
}

// moveStream moves a stream between the ends of a task in this process and the link, which is nil for none.
func (l *Local) moveStream(ctx context.Context, ends Ends, t Task, link *tcp.Link, progress func(transfer.Progress)) (res Result, err error) {
	sends, receives, connections := true, true, 0
	if link != nil {
		from, to := t.kinds()
		sends, receives, connections = to.remote(), from.remote(), len(link.Conns())
	}
	options, e := t.options(), transfer.Ends{Link: link}
	release, err := l.memory.Reserve(&options, connections, !receives)
	if err == nil {
		defer release()
		if sends {
			e.Source, err = ends.OpenFrom(ctx, t.From)
		}
	}
	if err == nil && receives {
		if e.Sink, err = ends.OpenTo(ctx, t.To); err != nil && e.Source != nil {
			_ = e.Source.Close() // it did nothing
		}
	}
	if err != nil {
		if link != nil {
			link.Abort(err)
		}
		return res, err
	}
	if res, err = MoveStream(ctx, e, options, &l.limits, progress); err == nil {
		l.addArrived(ctx, t.To, &res)
	}
	return res, err
}

// MoveStream moves a stream within its limits, closes the source, and returns the accounts of the ends.
func MoveStream(ctx context.Context, e transfer.Ends, o transfer.Options, limits *transfer.Limits, progress func(transfer.Progress)) (res Result, err error) {
	defer limits.Share(&o)()
	res.Result, err = transfer.Move(ctx, e, o, progress)
	res.addAccounts(e.Source, e.Sink)
	if s, ok := e.Source.(*blockStream); ok && err == nil {
		res.Blocks = s.filter.Blocks()
	}
	if e.Source != nil {
		_ = e.Source.Close() // if it failed, Move has closed it
	}
	return res, CauseOf(e.Source, err)
}

// OpenFrom opens a source end in this process.
func (l *Local) OpenFrom(ctx context.Context, end From) (transfer.Source, error) {
	switch from := end.(type) {
	case SendStream:
		src, err := l.openSend(ctx, from)
		if err != nil {
			return nil, err
		}
		return SelectBlocks(src, from.Only), nil
	case SendFiles:
		return l.packFiles(ctx, from.Archive)
	case Noise:
		return probe.Noise(from.Time), nil
	}
	return nil, fmt.Errorf("%T is not an end that this process opens", end)
}

// OpenTo opens a target end in this process.
func (l *Local) OpenTo(ctx context.Context, end To) (transfer.Sink, error) {
	switch to := end.(type) {
	case ReceiveStream:
		return l.tools.OpenReceive(ctx, to.Spec)
	case ReceiveFiles:
		return files.Unpack(to.Into)
	case WriteVolume:
		return openVolume(ctx, to.Volume)
	case Nowhere:
		return probe.Discard(), nil
	}
	return nil, fmt.Errorf("%T is not an end that this process opens", end)
}

// openSend starts a stream. Small streams use the back end if it is running.
func (l *Local) openSend(ctx context.Context, from SendStream) (src cli.Stream, err error) {
	if !from.Options.Small() || !l.started.Load() {
		return l.tools.OpenSend(ctx, from.Spec)
	}
	life := ctx // of the stream, not of the call
	err = l.with(ctx, func(_ context.Context, b cli.Backend) error {
		src, err = b.OpenSend(life, from.Spec)
		return err
	})
	return src, err
}

// SelectBlocks returns a stream with the blocks of only, or src itself if only is empty.
func SelectBlocks(src cli.Stream, only zfs.Blocks) cli.Stream {
	if len(only) == 0 {
		return src
	}
	return &blockStream{Stream: src, filter: zfs.NewBlockFilter(src, only)}
}

// blockStream is a stream with some blocks of another one.
type blockStream struct {
	cli.Stream
	filter *zfs.BlockFilter
}

var _ transfer.WorkingSource = (*blockStream)(nil)

func (s *blockStream) Read(b []byte) (int, error) { return s.filter.Read(b) }

func (s *blockStream) Worked() int64 { return s.filter.Worked() }

// addAccounts adds the counts of the ends in this process.
func (r *Result) addAccounts(src transfer.Source, sink transfer.Sink) {
	if v, ok := sink.(*volumeSink); ok {
		a := v.target.Account()
		r.Device = &a
	}
	from, sends := src.(*files.Packer)
	to, receives := sink.(*files.Unpacker)
	var a files.Account
	if receives {
		a = to.Account()
	}
	if sends {
		a = a.With(from.Account())
	}
	if sends || receives {
		r.Files = &a
	}
}

// CauseOf returns why a stream failed, or nil if err is nil. The closed source may know a better
// cause than err.
func CauseOf(src transfer.Source, err error) error {
	s, ok := src.(cli.Stream)
	if err == nil || !ok {
		return err
	}
	return JoinCause(s.Cause(err), err)
}

// JoinCause returns the error of a failed transfer from the errors of source and target. If the
// target refused the stream, the result has both messages and the target's hint.
func JoinCause(source, target error) error {
	planned := &zfs.Error{Kind: zfs.Unplanned}
	if !errors.Is(target, planned) || errors.Is(source, planned) {
		return source
	}
	return fault.Failf(fault.HintOf(target), "%w; target: %w", source, target)
}
