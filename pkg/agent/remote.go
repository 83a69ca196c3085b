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

// Transport is the way to an agent: its standard output and input.
type Transport interface {
	io.Reader
	io.Writer
	// Close ends the way, and with it a Read or Write under way. It waits
	// until the agent has ended, within bounds, and returns what is known of
	// why it failed, such as the remote shell's last words; nil if it did not.
	Close() error
}

const (
	// cancelGrace is how long a cancelled call waits for the agent's answer:
	// an interrupted receive saves its state in that time.
	cancelGrace = 20 * time.Second
	// lastWords is how long a lost connection may take to say why, before the
	// calls that wait are told without.
	lastWords = 2 * time.Second
	// firstPings follow each other at once: the shortest of several round
	// trips is near the network's, whatever else the hosts have to do at the
	// start.
	firstPings = 8
)

// sameOnBoth is the remedy where two versions do not understand each other.
const sameOnBoth = "install the same zxfer on both hosts; where the account starts zxfer by itself, the one that it starts"

// maxVersion bounds what is shown of a version, in bytes.
const maxVersion = 64

// Remote is the Site of another host.
type Remote struct {
	host    string
	version string // of the agent, as its hello says
	t       Transport
	log     func(string)

	began time.Time     // of which pings count the time
	rtt   atomic.Int64  // shortest round trip, ns
	pongs atomic.Int64  // so far
	again chan struct{} // asks for the next ping at once

	out    chan []byte   // messages to be written; the writer may block, callers not
	done   chan struct{} // closed when no answer will come any more
	ended  sync.Once
	err    error         // why, set before done is closed
	closed chan struct{} // closed when the transport is

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*pending

	lines flow // of the agent's log
}

// pending is a call that waits for its result.
type pending struct {
	cost     int                    // of an answer, at most
	answer   chan error             // what came of it
	progress chan transfer.Progress // of one, the newest

	mu   sync.Mutex
	over bool                 // nobody waits any more
	take func(*message) error // takes the answer in
}

// settle takes in an answer, unless nobody waits for it any more. That is the
// reader's work, so that no more than one answer is in memory undecoded.
func (p *pending) settle(m *message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return // also a second answer to one call
	}
	p.over = true
	p.answer <- p.take(m)
}

// NewRemote waits for the agent's hello and returns its Site. host is the
// name that messages show; log is told what the agent logs. The transport is closed
// on failure.
//
// An agent of another protocol is refused (fault.Refused).
func NewRemote(ctx context.Context, host string, t Transport, log func(string)) (*Remote, error) {
	r := &Remote{host: host, t: t, log: log, began: time.Now(), out: make(chan []byte, 64), again: make(chan struct{}, 1),
		done: make(chan struct{}), closed: make(chan struct{}), calls: map[uint64]*pending{}}
	in := bufio.NewReaderSize(t, 64<<10)
	greeted := make(chan error, 1)
	go func() {
		var err error
		r.version, err = readHello(in)
		greeted <- err
	}()
	var err error
	select {
	case err = <-greeted:
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
		return nil, fault.Refusef(sameOnBoth, "%s: %w", host, other)
	case why != nil:
		return nil, fmt.Errorf("%s: %w", host, why)
	}
	return nil, fmt.Errorf("%s: no agent answered: %w", host, err)
}

// lose ends the Remote; the first reason stays, unless the transport knows a
// better one.
func (r *Remote) lose(err error) {
	r.ended.Do(func() {
		why := make(chan error, 1)
		go func() {
			why <- r.t.Close()
			close(r.closed)
		}()
		select {
		case w := <-why:
			if w != nil {
				err = w
			}
		case <-time.After(lastWords):
		}
		r.err = fmt.Errorf("%s: %w: %w", r.host, hosts.ErrLost, err)
		close(r.done)
	})
}

// Close ends the connection, and with it the agent, which it waits for within
// the transport's bounds. Calls that wait fail with site.ErrLost.
func (r *Remote) Close() error {
	r.lose(errors.New("closed"))
	<-r.closed
	return nil
}

func (r *Remote) write() {
	for {
		select {
		case raw := <-r.out:
			if _, err := r.t.Write(raw); err != nil {
				r.lose(err)
				return
			}
		case <-r.done:
			return
		}
	}
}

func (r *Remote) read(in io.Reader) {
	heard := time.AfterFunc(silence, func() { r.lose(fmt.Errorf("it said nothing for %s", silence)) })
	defer heard.Stop()
	in = sign{in, func() { heard.Reset(silence) }}
	for {
		m, err := readMessage(in, maxAnswer, r.mayCost)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the agent ended")
			}
			r.lose(err)
			return
		}
		// What the log waits for, such as a terminal that was stopped, is no
		// silence of the agent's.
		heard.Stop()
		r.handle(m)
		heard.Reset(silence)
	}
}

// mayCost is the most that a message may cost to take in.
func (r *Remote) mayCost(m *message) int {
	if p := r.waiting(m.ID); p != nil && m.Kind == result {
		return p.cost
	}
	return budget.Small
}

func (r *Remote) waiting(id uint64) *pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[id]
}

// handle never waits: one slow caller must not hold up the others.
func (r *Remote) handle(m *message) {
	switch m.Kind {
	case pong:
		r.measure(time.Since(r.began) - time.Duration(m.ID))
		return
	case logged:
		for _, text := range r.lines.pass(time.Now(), clip(m.Text, maxLine)) {
			r.log(r.host + ": " + text)
		}
		return
	}
	p := r.waiting(m.ID)
	if p == nil {
		return // its caller gave up waiting
	}
	switch m.Kind {
	case result:
		p.settle(m)
	case progress:
		var pr transfer.Progress
		if p.progress == nil || json.Unmarshal(m.Body, &pr) != nil || hosts.CheckProgress(&pr) != nil {
			return
		}
		select { // a slow consumer sees the newest only
		case <-p.progress:
		default:
		}
		select {
		case p.progress <- pr:
		default:
		}
	}
}

func (r *Remote) measure(trip time.Duration) {
	if old := r.rtt.Load(); trip > 0 && (old == 0 || int64(trip) < old) {
		r.rtt.Store(int64(trip))
	}
	if r.pongs.Add(1) < firstPings {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
}

// keepAlive pings. The number of a ping is the time it was sent at, so that a
// late answer is not taken for that to a later one. It is no time of day, as
// the clock may be set.
func (r *Remote) keepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		// A lost host shows in done.
		_ = r.send(context.Background(), &message{Kind: ping, ID: uint64(time.Since(r.began))})
		select {
		case <-tick.C:
		case <-r.again:
		case <-r.done:
			return
		}
	}
}

func (r *Remote) send(ctx context.Context, m *message) error {
	raw, err := encode(m, maxRequest)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", r.host, m.Op, err)
	}
	select {
	case r.out <- raw:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", r.host, ctx.Err())
	case <-r.done:
		return r.err
	}
}

// checked is the error of an answer that answers something else than was
// asked; nil where err is.
func (r *Remote) checked(op string, err error) error {
	if err == nil {
		return nil
	}
	// Not of the class that the same text has where a user's own words are judged.
	return fault.Failf("", "%s: malformed answer of %s: %w", r.host, op, err)
}

// call asks the agent and waits for its answer, which may cost so many bytes.
func (r *Remote) call(ctx context.Context, op string, body []byte, cost int, into any, report func(transfer.Progress)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", r.host, err)
	}
	p := &pending{answer: make(chan error, 1), cost: cost, take: func(m *message) error { return r.answered(op, m, into) }}
	if report != nil {
		p.progress = make(chan transfer.Progress, 1)
	}
	r.mu.Lock()
	r.next++
	id := r.next
	r.calls[id] = p
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.calls, id)
		r.mu.Unlock()
		p.mu.Lock() // into is the caller's again
		p.over = true
		p.mu.Unlock()
	}()
	if err := r.send(ctx, &message{Kind: call, ID: id, Op: op, Body: body}); err != nil {
		return err
	}
	stopped := ctx.Done()
	var grace <-chan time.Time
	for {
		select {
		case err := <-p.answer:
			// The agent only knows that the call was cancelled, not why.
			if why := ctx.Err(); errors.Is(err, context.Canceled) && why != nil && !errors.Is(err, why) {
				return fmt.Errorf("%w: %w", why, err)
			}
			return err
		case pr := <-p.progress:
			report(pr)
		case <-stopped:
			if err := r.send(context.WithoutCancel(ctx), &message{Kind: cancel, ID: id}); err != nil {
				return err
			}
			stopped, grace = nil, time.After(cancelGrace)
		case <-grace:
			return fmt.Errorf("%s: %w, and it did not end %s within %s", r.host, ctx.Err(), op, cancelGrace)
		case <-r.done:
			return r.err
		}
	}
}

// answered takes an answer in.
func (r *Remote) answered(op string, m *message, into any) error {
	switch {
	case m.tooMuch != nil:
		return r.checked(op, m.tooMuch)
	case m.Error != nil:
		if strings.Contains(m.Error.Text, "unknown field") { // says the decoder of another build
			m.Error.Hint = fmt.Sprintf("zxfer there is %s, of another build: %s", clip(r.version, maxVersion), sameOnBoth)
		}
		return m.Error.unpack(r.host)
	}
	return r.checked(op, json.Unmarshal(m.Body, into))
}

// flow bounds the lines that an agent has its client log.
type flow struct {
	since   time.Time
	n, lost int
}

// Bounds of a log: the length of a line in bytes, and lines within a time.
const (
	maxLine  = 4 << 10
	maxLines = 200
	perTime  = 10 * time.Second
)

// pass returns the lines to be logged in place of one.
func (f *flow) pass(now time.Time, text string) (lines []string) {
	if now.Sub(f.since) >= perTime {
		if f.lost > 0 {
			lines = append(lines, fmt.Sprintf("%d lines of its log were left out", f.lost))
		}
		*f = flow{since: now}
	}
	if f.n++; f.n > maxLines {
		f.lost++
		return lines
	}
	return append(lines, text)
}
