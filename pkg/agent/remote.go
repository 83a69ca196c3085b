package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
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
	// Shell is the remote shell of the commands in hints, "" = ssh. Set it before the first call.
	Shell   string
	host    string
	version string // of the agent, from its hello
	t       Transport
	log     func(string)

	started time.Time     // pings carry the time since then
	rtt     atomic.Int64  // shortest, in ns
	pongs   atomic.Int64  // received so far
	pingNow chan struct{} // requests the next ping immediately

	streams *mux.Session  // carry messages and data; set after the hello
	carries atomic.Bool   // data streams: what was written must arrive before the connection ends
	out     chan []byte   // outgoing messages; only the writer may block
	done    chan struct{} // closed when no more answers can arrive
	ended   atomic.Bool   // end was called
	err     error         // reason, set before done is closed
	closed  chan struct{} // closed when the transport is closed

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*pending
	// unfinished means that the agent did not end a cancelled call.
	unfinished bool

	lines logLimiter // of the agent's log
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
		r.streams = mux.New(t, "")
		watchdog := time.AfterFunc(silenceTimeout, func() { r.fail(fmt.Errorf("no message for %s", silenceTimeout)) })
		go func() {
			defer watchdog.Stop()
			_ = r.streams.Run(activityReader{in, func() { watchdog.Reset(silenceTimeout) }})
		}()
		go r.read(r.streams.Control())
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
// cancelled ones that did not end, Close waits for the agent as Transport.Close does. Otherwise the agent
// has nothing to finish.
func (r *Remote) Close() error {
	end := r.t.Close
	r.mu.Lock()
	if t, ok := r.t.(Leaver); ok && len(r.calls) == 0 && !r.unfinished && !r.carries.Load() {
		end = func() error { t.Leave(); return nil }
	}
	r.mu.Unlock()
	r.streams.Flush(closeGrace)
	r.end(errors.New("closed"), end)
	<-r.closed
	return nil
}

// fail ends the Remote. The first reason counts, unless the transport has a better one.
func (r *Remote) fail(err error) { r.end(err, r.t.Close) }

// end is fail with a function that ends the transport.
func (r *Remote) end(err error, end func() error) {
	if r.ended.Swap(true) {
		<-r.done
		return
	}
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
	if r.streams != nil {
		r.streams.End(r.err)
	}
}

func (r *Remote) write() {
	for {
		select {
		case raw := <-r.out:
			if _, err := r.streams.Control().Write(raw); err != nil {
				return // read returns the reason
			}
		case <-r.done:
			return
		}
	}
}

func (r *Remote) read(in io.Reader) {
	messages, err := newDecompressor(in)
	if err != nil {
		r.fail(err)
		return
	}
	for {
		m, err := readMessage(messages, hosts.MaxAnswer, r.maxCost)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the agent ended")
			}
			r.fail(err)
			return
		}
		r.handle(m)
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

// Dial opens a stream of this connection to the listener at an address, which the agent offered, or for hosts.Attach.
func (r *Remote) Dial(ctx context.Context, address string) (*mux.Stream, error) {
	if address != hosts.AttachAddress { // what is attached has arrived with the answer
		r.carries.Store(true)
	}
	s, err := r.streams.Open(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.host, err)
	}
	return s, nil
}

// Supports returns true. An agent of an older zxfer may still refuse an operation.
func (r *Remote) Supports(hosts.Operation) bool { return true }

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
