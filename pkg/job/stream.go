package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

// windDown is how long one end may take to end by itself after the other
// failed: a receive that was cut off saves its state in that time.
const windDown = 30 * time.Second

// stream moves one step and returns what happened.
func (s *sender) stream(ctx context.Context, d *plan.Dataset, i int, id int) (*StepResult, error) {
	step := &d.Steps[i]
	started := time.Now()
	total := uint64(0)
	if step.Bytes > 0 {
		total = step.Done + step.Bytes
	}
	view := newView(step.Done, total, func(p StepProgress) {
		p.LimitedBy = s.link.limit(p.LimitedBy, s.target)
		s.rep.Progress(id, p)
	})
	var sent, received transfer.Result
	var err error
	switch {
	case s.link.listener == nil:
		received, err = s.copyLocal(ctx, step, view)
		sent = received
	case s.link.Wire == way.NC:
		sent, received, err = s.byNetcat(ctx, step, view)
	default:
		sent, received, err = s.acrossNetwork(ctx, d, step, view)
	}
	r := &StepResult{
		Source: d.Source, Target: d.Target, Snapshot: "@" + step.Send.To, Kind: step.Kind,
		Bytes: uint64(received.Bytes), Seconds: time.Since(started).Seconds(), Resumed: step.Kind == plan.Resume,
		Wire: s.link.name(d.Encrypted), Network: sent.Network, Digest: received.Digest,
	}
	if r.Seconds > 0 {
		r.Rate = uint64(float64(r.Bytes) / r.Seconds)
	}
	r.Stages = sent.Stages
	if s.link.listener != nil && s.link.Wire != way.NC {
		r.Stages = append(append([]transfer.Stage{}, sent.Stages...), received.Stages...)
	}
	r.LimitedBy = s.link.limit(transfer.LimitedBy(sent.Stages, received.Stages, sent.Network), s.target)
	if err != nil {
		r.Bytes = view.bytes() - step.Done
		r.Error = err.Error()
	}
	return r, err
}

// options are those of a stream that begins now.
func (s *sender) options() transfer.Options {
	now := time.Now
	if s.req.Clock != nil {
		now = s.req.Clock
	}
	return streamOptions(&s.req.Way, now())
}

// streamOptions are what both ends are told of a stream that begins now.
func streamOptions(w *way.Way, now time.Time) transfer.Options {
	return transfer.Options{Buffer: int64(w.Buffer), BandLimit: w.BandwidthAt(now), Compress: cmp.Or(w.Compress, "auto"), CompressThreads: w.CompressThreads}
}

// copyLocal moves a stream within one host.
func (s *sender) copyLocal(ctx context.Context, step *plan.Step, v *view) (res transfer.Result, err error) {
	err = s.source.do(ctx, func(st site.Site) (err error) {
		res, err = st.Transfer(ctx, site.Task{Send: &step.Send, Receive: &step.Receive, Options: s.options()}, v.both)
		return err
	})
	return res, err
}

// acrossNetwork offers a listener on one end, dials it from the other, and
// runs both halves. The error is the cause, not its echo at the other end.
func (s *sender) acrossNetwork(ctx context.Context, d *plan.Dataset, step *plan.Step, v *view) (sent, received transfer.Result, err error) {
	p, stop, err := s.link.open(ctx, d.Encrypted, step.Bytes)
	if err != nil {
		return sent, received, err
	}
	defer stop()
	options := s.options()
	if step.Send.Flags.Raw {
		options.Compress = "off" // encrypted blocks do not compress
	}
	send := site.Task{Send: &step.Send, Options: options}
	receive := site.Task{Receive: &step.Receive, Options: options}
	if s.link.listener == s.target {
		send.Ticket, receive.Offered = &p.ticket, p.offered
	} else {
		receive.Ticket, send.Offered = &p.ticket, p.offered
	}

	return halves(ctx, s.source, s.target, send, receive, v.sent, v.received)
}

// opened is a listener that was offered.
type opened struct {
	ticket  wire.Ticket
	offered string // the session, on the site that listens
}

// open offers a listener on one end, for a stream of about that many bytes.
// stop ends what leads to it.
func (c linkChoice) open(ctx context.Context, encrypted bool, bytes uint64) (o opened, stop func(), err error) {
	err = c.listener.do(ctx, func(st site.Site) (err error) {
		o.ticket, err = st.Offer(ctx, c.offer(encrypted, bytes))
		return err
	})
	if err != nil {
		return o, nil, err
	}
	o.offered = o.ticket.Session
	ctx, stop = context.WithCancel(ctx)
	if c.Wire == way.SSH {
		if o.ticket.Address, err = c.listener.open.Relay(ctx, c.listener.host, o.ticket.Address); err != nil {
			stop()
			return o, nil, err
		}
	}
	return o, stop, nil
}

// goneWithin is how long after a failed dial the loss of the other end may
// show: the kernel answers for a dead listener at once, its remote shell not.
const goneWithin = time.Second

// halves runs both ends of a transfer.
func halves(ctx context.Context, source, target *end, send, receive site.Task, onSent, onReceived func(transfer.Progress)) (sent, received transfer.Result, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var sendErr, receiveErr error
	var wg sync.WaitGroup
	half := func(e *end, t site.Task, res *transfer.Result, errp *error, progress func(transfer.Progress)) {
		defer wg.Done()
		*errp = e.do(ctx, func(st site.Site) (err error) {
			*res, err = st.Transfer(ctx, t, progress)
			return err
		})
		if *errp == nil {
			return
		}
		patience := windDown
		switch {
		case errors.Is(*errp, wire.ErrDial):
			// Nobody will come: the listener need not wait. But it may be
			// gone, and that be the reason.
			patience = goneWithin
		case fault.ClassOf(*errp) == fault.Refused:
			// It never began, so the other has nothing to wind down.
			patience = goneWithin
		}
		time.AfterFunc(patience, cancel)
	}
	wg.Add(2)
	go half(source, send, &sent, &sendErr, onSent)
	go half(target, receive, &received, &receiveErr, func(p transfer.Progress) {
		if p.Bytes > 0 {
			target.met.Store(true)
		}
		onReceived(p)
	})
	wg.Wait()
	err = rootCause(sendErr, receiveErr)
	if errors.Is(err, wire.ErrDial) && target.met.Load() {
		// Data went this way before: this, too, may pass.
		err = fmt.Errorf("%w: %w", wire.ErrCut, err)
	}
	if err == nil && sent.Digest != received.Digest && sent.Digest != "" && received.Digest != "" {
		err = fault.Failf("", "%w: its digest is %s at the %s and %s at the %s", transfer.ErrMiscounted, sent.Digest, source.role, received.Digest, target.role)
	}
	return sent, received, err
}

// rootCause picks, of both ends' errors, the one that explains the other: an
// end's own failure before what it heard from its peer, before a cut.
func rootCause(send, receive error) error {
	switch {
	case send == nil:
		return receive
	case receive == nil:
		return send
	// Who listened is gone: that is why it could not be dialled.
	case errors.Is(send, wire.ErrDial) && errors.Is(receive, site.ErrLost):
		return receive
	case errors.Is(receive, wire.ErrDial) && errors.Is(send, site.ErrLost):
		return send
	case echo(receive) < echo(send):
		return receive
	}
	return send
}

// echo ranks errors: the higher, the more likely it only mirrors another.
func echo(err error) int {
	switch {
	case errors.Is(err, wire.ErrTampered):
		return 0
	case errors.Is(err, context.Canceled):
		return 5
	case errors.Is(err, wire.ErrCut):
		return 3
	case errors.As(err, new(*transfer.PeerError)):
		return 2
	case errors.Is(err, site.ErrLost):
		return 1
	}
	return 0
}

// view joins the progress of both ends of one stream.
type view struct {
	report  func(StepProgress)
	base    uint64 // bytes that arrived before this stream
	total   uint64
	started time.Time

	mu      sync.Mutex
	send    transfer.Progress
	receive transfer.Progress
	recent  []moment // of the last rateWindow
}

type moment struct {
	at    time.Time
	bytes int64
}

// rateWindow is the time that the shown rate is averaged over.
const rateWindow = 5 * time.Second

func newView(done, total uint64, report func(StepProgress)) *view {
	return &view{report: report, base: done, total: total, started: time.Now()}
}

func (v *view) sent(p transfer.Progress) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.send = p
}

func (v *view) received(p transfer.Progress) {
	v.mu.Lock()
	v.receive = p
	now := time.Now()
	v.recent = append(v.recent, moment{now, p.Bytes})
	for len(v.recent) > 2 && now.Sub(v.recent[0].at) > rateWindow {
		v.recent = v.recent[1:]
	}
	sp := StepProgress{
		Bytes: v.base + uint64(p.Bytes), Total: v.total, Elapsed: now.Sub(v.started),
		LimitedBy: transfer.LimitedBy(v.send.Stages, v.receive.Stages, v.send.Network),
	}
	first := v.recent[0]
	if dt := now.Sub(first.at).Seconds(); dt > 0 {
		sp.Rate = uint64(float64(max(0, p.Bytes-first.bytes)) / dt)
	}
	v.mu.Unlock()
	v.report(sp)
}

// both is for a local copy, whose one end is both.
func (v *view) both(p transfer.Progress) {
	v.sent(p)
	v.received(p)
}

func (v *view) bytes() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.base + uint64(v.receive.Bytes)
}
