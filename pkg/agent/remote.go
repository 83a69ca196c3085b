package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
)

// Transport is the connection to an agent's standard output and input.
type Transport interface {
	io.Reader
	io.Writer
	// Close ends the connection and any Read or Write. It waits a limited time for the agent to
	// end. It returns the reason for a failure, such as the remote shell's error message, or
	// nil.
	Close() error
}

// Leaver is a Transport that can end the connection without waiting for the agent, which then ends by
// itself.
type Leaver interface{ Leave() }

// Remote is a host that an agent serves.
type Remote struct {
	host    string
	version string // of the agent, from its hello
	t       Transport
	log     func(string)

	started time.Time     // pings carry the time since then
	rtt     atomic.Int64  // shortest, in ns
	pongs   atomic.Int64  // received so far
	pingNow chan struct{} // requests the next ping immediately

	out    chan []byte   // outgoing messages; only the writer may block
	done   chan struct{} // closed when no more answers can arrive
	ended  sync.Once
	err    error         // reason, set before done is closed
	closed chan struct{} // closed when the transport is closed

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*pending
	// unfinished means that the agent did not end a cancelled call.
	unfinished bool

	lines logLimiter // of the agent's log
}

// pending is a call that waits for its result.
type pending struct {
	id       uint64
	op       string
	request  *hosts.Request
	cost     int                    // maximum cost of an answer
	answer   chan error             // its error
	progress chan transfer.Progress // the most recent progress only

	mu        sync.Mutex
	abandoned bool                 // no longer waiting
	take      func(*message) error // decodes the answer
}

const (
	// cancelGrace is how long a cancelled call waits for the answer. An interrupted receive
	// saves its state in that time.
	cancelGrace = 20 * time.Second
	// closeGrace is how long a lost connection waits for the reason before calls fail.
	closeGrace = 2 * time.Second
	// firstPings are sent one after another. The shortest of several round trips is close to
	// the network's, even if the hosts are busy at the start.
	firstPings = 8
)

// NewRemote waits for the agent's hello. host is the name for messages, and log gets the
// agent's log lines. On failure it closes the transport. It refuses an agent with another
// protocol version (fault.Refused).
func NewRemote(ctx context.Context, host string, t Transport, log func(string)) (*Remote, error) {
	r := &Remote{host: host, t: t, log: log, started: time.Now(), out: make(chan []byte, 64), pingNow: make(chan struct{}, 1),
		done: make(chan struct{}), closed: make(chan struct{}), calls: map[uint64]*pending{}}
	in := bufio.NewReaderSize(t, 64<<10)
	helloRead := make(chan error, 1)
	go func() {
		var err error
		r.version, err = readHello(in)
		helloRead <- err
	}()
	var err error
	select {
	case err = <-helloRead:
	case <-ctx.Done():
		_ = t.Close() // ends the reading goroutine
		return nil, fmt.Errorf("%s: %w", host, ctx.Err())
	}
	if err == nil {
		go r.read(in)
		go r.write()
		go r.keepAlive()
		return r, nil
	}
	why := t.Close()
	var other *Mismatch
	switch {
	case errors.As(err, &other):
		return nil, fault.Refusef(versionHint, "%s: %w", host, other)
	case why != nil:
		return nil, fmt.Errorf("%s: %w", host, why)
	}
	return nil, fmt.Errorf("%s: no agent answered: %w", host, err)
}

// versionHint is the hint for incompatible versions.
const versionHint = "install the same zxfer on both hosts (for a restricted key, at the path in authorized_keys)"

// maxVersion limits the printed version, in bytes.
const maxVersion = 64

// Close ends the connection and the agent. Pending calls fail with hosts.ErrLost. If there are any, or
// cancelled ones that did not end, Close waits for the agent as Transport.Close does. Otherwise the agent has nothing to finish.
func (r *Remote) Close() error {
	end := r.t.Close
	r.mu.Lock()
	if t, ok := r.t.(Leaver); ok && len(r.calls) == 0 && !r.unfinished {
		end = func() error { t.Leave(); return nil }
	}
	r.mu.Unlock()
	r.end(errors.New("closed"), end)
	<-r.closed
	return nil
}

// fail ends the Remote. The first reason counts, unless the transport has a better one.
func (r *Remote) fail(err error) { r.end(err, r.t.Close) }

// end is fail with a function that ends the transport.
func (r *Remote) end(err error, end func() error) {
	r.ended.Do(func() {
		why := make(chan error, 1)
		go func() {
			why <- end()
			close(r.closed)
		}()
		select {
		case w := <-why:
			if w != nil {
				err = w
			}
		case <-time.After(closeGrace):
		}
		r.err = fmt.Errorf("%s: %w: %w", r.host, hosts.ErrLost, err)
		close(r.done)
	})
}

func (r *Remote) write() {
	for {
		select {
		case raw := <-r.out:
			if _, err := r.t.Write(raw); err != nil {
				r.fail(err)
				return
			}
		case <-r.done:
			return
		}
	}
}

func (r *Remote) read(in io.Reader) {
	watchdog := time.AfterFunc(silenceTimeout, func() { r.fail(fmt.Errorf("no message for %s", silenceTimeout)) })
	defer watchdog.Stop()
	in = activityReader{in, func() { watchdog.Reset(silenceTimeout) }}
	for {
		m, err := readMessage(in, hosts.MaxAnswer, r.maxCost)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the agent ended")
			}
			r.fail(err)
			return
		}
		// Blocking in log, for example on a stopped terminal, is not the agent's silence.
		watchdog.Stop()
		r.handle(m)
		watchdog.Reset(silenceTimeout)
	}
}

// handle must not block: one slow caller would delay the others.
func (r *Remote) handle(m *message) {
	switch m.Kind {
	case pong:
		r.measure(time.Since(r.started) - time.Duration(m.ID))
		return
	case logged:
		for _, text := range r.lines.allow(time.Now(), clip(m.Text, maxLine)) {
			r.log(r.host + ": " + text)
		}
		return
	}
	p := r.pendingCall(m.ID)
	if p == nil {
		return // its caller has returned
	}
	switch m.Kind {
	case result:
		p.deliver(m)
	case progress:
		var pr transfer.Progress
		if p.progress == nil || json.Unmarshal(m.Body, &pr) != nil || hosts.CheckProgress(&pr) != nil {
			return
		}
		select { // a slow consumer gets the most recent progress only
		case <-p.progress:
		default:
		}
		select {
		case p.progress <- pr:
		default:
		}
	}
}

// maxCost returns the maximum cost of a message.
func (r *Remote) maxCost(m *message) int {
	if p := r.pendingCall(m.ID); p != nil && m.Kind == result {
		return p.cost
	}
	return budget.MinLimit
}

func (r *Remote) pendingCall(id uint64) *pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

func (r *Remote) measure(trip time.Duration) {
	if old := r.rtt.Load(); trip > 0 && (old == 0 || int64(trip) < old) {
		r.rtt.Store(int64(trip))
	}
	if r.pongs.Add(1) < firstPings {
		select {
		case r.pingNow <- struct{}{}:
		default:
		}
	}
}

// keepAlive sends pings. A ping's ID is its time, so that a late pong cannot be taken for that
// of a later ping. It is a monotonic time, because the clock may be set.
func (r *Remote) keepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		// if the host is lost, done is closed
		_ = r.send(context.Background(), &message{Kind: ping, ID: uint64(time.Since(r.started))})
		select {
		case <-tick.C:
		case <-r.pingNow:
		case <-r.done:
			return
		}
	}
}

var _ hosts.Host = (*Remote)(nil)

// Name returns the host as the user typed it.
func (r *Remote) Name() string { return r.host }

// RTT returns the shortest round-trip time of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

// Supports returns true. An agent of an older zxfer may still refuse an operation.
func (r *Remote) Supports(hosts.Operation) bool { return true }

// Run runs a request on the host and checks its answer.
func (r *Remote) Run(ctx context.Context, q *hosts.Request) error {
	return r.RunInOrder(ctx, []*hosts.Request{q})[0]
}

// Limits of what RunInOrder sends before it waits for an answer: bytes of arguments, and calls. A restricted
// agent limits both (see Server), and beyond that a round trip matters little.
const (
	maxTogether      = 1 << 20
	maxCallsTogether = 16
)

// RunInOrder runs requests on the host, each only after the previous one succeeded, and checks their
// answers. It returns the error of each. It sends requests together up to maxTogether and maxCallsTogether.
func (r *Remote) RunInOrder(ctx context.Context, requests []*hosts.Request) []error {
	errs := make([]error, len(requests))
	for done := 0; done < len(requests); {
		calls, err := r.startInOrder(ctx, requests[done:])
		if err != nil {
			errs[done] = err
		}
		r.finishAll(ctx, calls, errs[done:])
		for range max(1, len(calls)) {
			if errs[done] != nil {
				return notStarted(errs, done)
			}
			done++
		}
	}
	return errs
}

// finishAll waits for the answers of calls, and sets the error of each.
func (r *Remote) finishAll(ctx context.Context, calls []*pending, errs []error) {
	if len(calls) == 0 {
		return
	}
	var others sync.WaitGroup
	for i, p := range calls[1:] {
		others.Go(func() { errs[i+1] = r.finish(ctx, p) })
	}
	errs[0] = r.finish(ctx, calls[0])
	others.Wait()
}

// notStarted sets the error of the requests after the failed one that were not sent.
func notStarted(errs []error, failed int) []error {
	for i := failed + 1; i < len(errs); i++ {
		if errs[i] == nil {
			errs[i] = hosts.ErrNotStarted
		}
	}
	return errs
}

// startInOrder sends the first request and the next ones up to the limits. On error it sent none.
func (r *Remote) startInOrder(ctx context.Context, requests []*hosts.Request) (calls []*pending, err error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.host, err)
	}
	var batch []byte // one item of out, so that no other call is sent in between
	defer func() {
		if err != nil {
			for _, p := range calls {
				r.forget(p)
			}
			calls = nil
		}
	}()
	after := uint64(0)
	for _, q := range requests {
		body, err := json.Marshal(q.Args)
		if err != nil {
			return calls, err
		}
		if len(calls) > 0 && (len(batch)+len(body) > maxTogether || len(calls) == maxCallsTogether) {
			break
		}
		p := r.register(q, len(body))
		calls = append(calls, p)
		raw, err := encode(&message{Kind: call, ID: p.id, Op: p.op, After: after, Body: body}, hosts.MaxRequest)
		if err != nil {
			return calls, fmt.Errorf("%s: %s: %w", r.host, p.op, err)
		}
		batch, after = append(batch, raw...), p.id
	}
	return calls, r.enqueue(ctx, batch)
}

// register adds a call that is about to be sent. body is the size of its arguments, in bytes.
func (r *Remote) register(q *hosts.Request, body int) *pending {
	p := &pending{request: q, op: q.Op.Name(), answer: make(chan error, 1), cost: q.Op.MaxAnswer(q.Args, body)}
	p.take = func(m *message) error { return r.decodeAnswer(p.op, m, q.Answer) }
	if q.Progress != nil {
		p.progress = make(chan transfer.Progress, 1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	p.id = r.next
	r.calls[p.id] = p
	return p
}

// forget removes a call. Its caller owns the answer again.
func (r *Remote) forget(p *pending) {
	r.mu.Lock()
	delete(r.calls, p.id)
	r.mu.Unlock()
	p.mu.Lock()
	p.abandoned = true
	p.mu.Unlock()
}

// finish waits for the answer of a call and checks it.
func (r *Remote) finish(ctx context.Context, p *pending) error {
	defer r.forget(p)
	if err := r.wait(ctx, p); err != nil {
		return err
	}
	return r.checkAnswer(p.op, p.request.CheckAnswer())
}

// wait waits for the answer of a call.
func (r *Remote) wait(ctx context.Context, p *pending) error {
	stopped := ctx.Done()
	var grace <-chan time.Time
	for {
		select {
		case err := <-p.answer:
			// The agent knows that the call was cancelled, but not why.
			if why := ctx.Err(); errors.Is(err, context.Canceled) && why != nil && !errors.Is(err, why) {
				return fmt.Errorf("%w: %w", why, err)
			}
			return err
		case pr := <-p.progress:
			p.request.Progress(pr)
		case <-stopped:
			if err := r.send(context.WithoutCancel(ctx), &message{Kind: cancel, ID: p.id}); err != nil {
				return err
			}
			stopped, grace = nil, time.After(cancelGrace)
		case <-grace:
			r.mu.Lock()
			r.unfinished = true
			r.mu.Unlock()
			return fmt.Errorf("%s: %w, and it did not end %s within %s", r.host, ctx.Err(), p.op, cancelGrace)
		case <-r.done:
			return r.err
		}
	}
}

func (r *Remote) send(ctx context.Context, m *message) error {
	raw, err := encode(m, hosts.MaxRequest)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.host, m.Op, err)
	}
	return r.enqueue(ctx, raw)
}

// enqueue queues encoded messages for writing.
func (r *Remote) enqueue(ctx context.Context, raw []byte) error {
	select {
	case r.out <- raw:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", r.host, ctx.Err())
	case <-r.done:
		return r.err
	}
}

// deliver decodes an answer unless the call is abandoned. The reader calls it, so that at most
// one undecoded answer is in memory.
func (p *pending) deliver(m *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.abandoned {
		return // also a second answer to one call
	}
	p.abandoned = true
	p.answer <- p.take(m)
}

// decodeAnswer decodes the answer of a call.
func (r *Remote) decodeAnswer(op string, m *message, into any) error {
	switch {
	case m.rejected != nil:
		return r.checkAnswer(op, m.rejected)
	case m.Error != nil:
		if strings.Contains(m.Error.Text, "unknown field") { // the decoder of another build
			m.Error.Hint = fmt.Sprintf("zxfer there is %s, another build: %s", clip(r.version, maxVersion), versionHint)
		}
		return m.Error.unpack(r.host)
	}
	return r.checkAnswer(op, json.Unmarshal(m.Body, into))
}

// checkAnswer turns a failed check into a malformed-answer error; nil if err is nil.
func (r *Remote) checkAnswer(op string, err error) error {
	if err == nil {
		return nil
	}
	// Drop err's class: it would blame the user's input.
	return fault.Failf("", "%s: malformed answer of %s: %w", r.host, op, err)
}

// logLimiter limits the log lines accepted from an agent.
type logLimiter struct {
	since   time.Time
	n, lost int
}

// allow returns the lines to log for a line of the agent.
func (f *logLimiter) allow(now time.Time, text string) (lines []string) {
	if now.Sub(f.since) >= logWindow {
		if f.lost > 0 {
			lines = append(lines, fmt.Sprintf("omitted %d lines of its log", f.lost))
		}
		*f = logLimiter{since: now}
	}
	if f.n++; f.n > maxLines {
		f.lost++
		return lines
	}
	return append(lines, text)
}

// Limits of the log: bytes per line, and lines per logWindow.
const (
	maxLine   = 4 << 10
	maxLines  = 200
	logWindow = 10 * time.Second
)
