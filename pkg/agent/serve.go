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

	"golang.org/x/sync/semaphore"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/mux"
	"zxfer/pkg/transport/tcp"
)

// Keepalive times. The client pings. Either side that receives nothing for silenceTimeout
// considers the other dead.
const (
	pingEvery      = 5 * time.Second
	silenceTimeout = 30 * time.Second
	// shutdownGrace limits the wait for operations at the end. An interrupted receive saves its
	// state in that time.
	shutdownGrace = 60 * time.Second
	// flushGrace limits the wait for a client that reads nothing.
	flushGrace = time.Second
)

// Server serves one host to one client.
type Server struct {
	Host    hosts.Host
	Version string
	// Guard checks every call; nil = everything is permitted.
	Guard *authz.Guard
	// Note is logged on the client at the start; "" = none.
	Note string
	// SilenceTimeout replaces silenceTimeout; 0 = 30 seconds.
	SilenceTimeout time.Duration

	session atomic.Pointer[session] // nil unless serving
}

// Limits of a session with a Guard. An honest client has a few calls per running stream and one
// large request.
const (
	maxCalls     = 256             // calls, most of them waiting
	maxShort     = 4               // running calls that are not long; each runs processes
	maxLong      = 64              // calls that last as long as a stream
	maxInFlight  = 40 << 20        // cost of unanswered requests; one alone may cost more
	maxUnwritten = hosts.MaxAnswer // bytes of answers waiting to be written
)

// Serve answers calls until the input ends, the client is silent for too long, or ctx ends.
// Then it cancels all calls and waits up to a minute for them. It returns nil at the end of
// input or of ctx. A read of in or write of out may still be blocked.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	timeout := s.SilenceTimeout
	if timeout <= 0 {
		timeout = silenceTimeout
	}
	c := newSession(ctx, s.Host, s.Guard)
	s.session.Store(c)
	if s.Note != "" {
		c.trySend(&message{Kind: logged, Text: s.Note})
	}
	c.watchdog = time.AfterFunc(timeout, func() {
		c.end(fmt.Errorf("no message for %s: connection lost", timeout))
	})
	defer c.watchdog.Stop()
	defer context.AfterFunc(ctx, func() { c.end(nil) })()
	streams := mux.New(out, hello(s.Version))
	defer func() {
		streams.End(io.EOF)
		streams.Flush(flushGrace) // the process may end next
	}()
	compressed, err := newCompressor(streams.Control())
	if err != nil {
		return err
	}
	streams.Accept = c.forward
	go func() { _ = streams.Run(activityReader{in, func() { c.watchdog.Reset(timeout) }}) }()
	go func() { c.end(c.read(bufio.NewReaderSize(streams.Control(), 64<<10))) }()
	go c.write(compressed)
	go c.beat()
	<-c.ended
	c.shutdown()
	if errors.Is(c.err, io.EOF) {
		return nil
	}
	return c.err
}

// Log sends a line to the client's user. It never blocks: it drops lines if the client is slow
// or Serve is not running.
func (s *Server) Log(text string) {
	if c := s.session.Load(); c != nil {
		c.trySend(&message{Kind: logged, Text: text})
	}
}

// session is the connection of one client.
type session struct {
	host     hosts.Host
	guard    *authz.Guard
	ops      map[string]hosts.Operation // by name
	watchdog *time.Timer
	queue    chan []byte // outgoing messages, buffered so that a client that does not read can still cancel

	once  sync.Once
	ended chan struct{} // closed when nothing more is sent
	err   error         // reason, set before ended is closed

	ctx     context.Context // parent of all calls
	stop    context.CancelFunc
	mu      sync.Mutex
	closing bool // no more calls start
	running map[uint64]context.CancelFunc
	cost    int // of the running requests
	streams int // long calls running
	calls   sync.WaitGroup

	short     *semaphore.Weighted // limits calls; nil without a Guard
	unwritten *semaphore.Weighted // limits bytes of answers
}

func newSession(ctx context.Context, s hosts.Host, guard *authz.Guard) *session {
	c := &session{host: s, guard: guard, ops: map[string]hosts.Operation{}, queue: make(chan []byte, 64), ended: make(chan struct{}),
		running: map[uint64]context.CancelFunc{}}
	for _, op := range hosts.Operations() {
		c.ops[op.Name()] = op
	}
	if guard != nil {
		c.short, c.unwritten = semaphore.NewWeighted(maxShort), semaphore.NewWeighted(maxUnwritten)
	}
	// Cancel calls only after ended is closed, so that a client does not take the agent's end
	// for an answer.
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// end ends the session. The first reason counts.
func (c *session) end(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.closing = true
		c.mu.Unlock()
		c.err = err
		close(c.ended)
		c.stop()
	})
}

// shutdown waits until all calls have ended, and closes the host.
func (c *session) shutdown() {
	ended := make(chan struct{})
	go func() { c.calls.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(shutdownGrace):
	}
	_ = c.host.Close() // no client is left for the error
}

// forward passes a stream of the client to a task, or to the listener at an address, which the host offered. A client without
// restrictions may also reach the listeners of other agents of its account.
func (c *session) forward(s *mux.Stream, address string) {
	host, ok := c.host.(interface {
		Attach(s *mux.Stream)
		Forward(ctx context.Context, address string, s tcp.Socket, own bool) error
	})
	if !ok {
		_ = s.Refuse("this host has no listeners")
		return
	}
	if address == hosts.AttachAddress { // before the call that names the stream starts
		host.Attach(s)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		_ = s.Refuse("the agent ends")
		return
	}
	// What the client has written arrives, although its end of the session follows.
	ctx := context.WithoutCancel(c.ctx)
	c.calls.Go(func() {
		if err := host.Forward(ctx, address, s, c.guard != nil); err != nil {
			_ = s.Refuse(err.Error())
		}
	})
}

func (c *session) read(in io.Reader) error {
	for {
		m, err := readMessage(in, hosts.MaxRequest, c.maxCost)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return errors.New("the input ended within a message")
			}
			return err
		}
		switch m.Kind {
		case ping:
			// if the queue is full, its messages are sign of life enough
			c.trySend(&message{Kind: pong, ID: m.ID})
		case cancel:
			c.mu.Lock()
			if stop := c.running[m.ID]; stop != nil {
				stop()
			}
			c.mu.Unlock()
		case call:
			if err := c.start(m); err != nil {
				return err
			}
		default:
			return fmt.Errorf("unexpected message %q", m.Kind)
		}
	}
}

// start runs a call in a new goroutine.
func (c *session) start(m *message) error {
	ctx, stop := context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[m.ID] != nil {
		stop()
		return fmt.Errorf("call %d is already running", m.ID)
	}
	if c.closing {
		stop()
		return nil
	}
	if c.guard != nil && len(c.running) >= maxCalls {
		stop()
		return fmt.Errorf("more than %d calls at once", maxCalls)
	}
	refused, long := m.rejected, c.ops[m.Op] != nil && c.ops[m.Op].Long()
	switch {
	case c.guard == nil || refused != nil:
	case c.cost > 0 && c.cost+m.cost > maxInFlight:
		refused = fault.Failf("send smaller or fewer requests", "%s: requests of more than %d bytes at once", m.Op, maxInFlight)
	case long && c.streams >= maxLong:
		refused = fault.Failf("send smaller or fewer requests", "%s: more than %d streams at once", m.Op, maxLong)
	}
	if refused != nil {
		m.Body = nil
	}
	c.running[m.ID] = stop
	c.cost += m.cost
	if long {
		c.streams++
	}
	c.calls.Go(func() {
		defer stop()
		err := refused
		if err != nil && c.guard != nil {
			c.guard.LogRefusedUnread(m.Op, refused)
		}
		if err == nil && c.short != nil && !long {
			// A turn ends when the answer is queued; maxUnwritten limits queued answers.
			if err = c.short.Acquire(ctx, 1); err == nil {
				defer c.short.Release(1)
			}
		}
		var answer []byte
		if err != nil {
			answer = encodeError(m, err)
		} else {
			answer = c.answer(ctx, m)
		}
		c.enqueue(answer) // blocks if the client does not read
		c.mu.Lock()
		delete(c.running, m.ID)
		c.cost -= m.cost
		if long {
			c.streams--
		}
		c.mu.Unlock()
	})
	return nil
}

// enqueue queues an answer for writing.
func (c *session) enqueue(answer []byte) {
	if n := c.unwrittenCost(answer); n > 0 && c.unwritten.Acquire(c.ctx, n) != nil {
		return // the session ended
	}
	select {
	case c.queue <- answer:
	case <-c.ended:
	}
}

// unwrittenCost returns the bytes of an encoded message that count against maxUnwritten. Small
// messages, such as those of trySend, do not count.
func (c *session) unwrittenCost(raw []byte) int64 {
	if c.unwritten == nil || len(raw)-lengthSize <= budget.MinLimit {
		return 0
	}
	return int64(min(len(raw), maxUnwritten))
}

// answer runs a call and returns its encoded result.
func (c *session) answer(ctx context.Context, m *message) []byte {
	value, err := c.execute(ctx, m)
	answer := &message{Kind: result, ID: m.ID}
	if err == nil {
		answer.Body, err = json.Marshal(value)
	}
	if err == nil {
		raw, tooLong := encode(answer, hosts.MaxAnswer)
		if tooLong == nil {
			return raw
		}
		err = fmt.Errorf("answer of %s: %w", m.Op, tooLong)
	}
	return encodeError(m, err)
}

// execute runs the operation with the arguments that the guard, if any, has checked.
func (c *session) execute(ctx context.Context, m *message) (answer any, err error) {
	op := c.ops[m.Op]
	q := authz.Request{Op: m.Op, Body: m.Body, Secret: op != nil && op.Secret()}
	var args any
	switch {
	case c.guard != nil: // it also logs unknown operations
		args, err = c.guard.Admit(ctx, q)
	case op != nil:
		args, err = op.Decode(m.Body)
	default:
		err = fmt.Errorf("%w %q", ErrUnknownOperation, m.Op)
	}
	if err != nil {
		return nil, err
	}
	r := op.Request(args, func(p transfer.Progress) {
		if body, err := json.Marshal(p); err == nil {
			c.trySend(&message{Kind: progress, ID: m.ID, Body: body})
		}
	})
	if err = c.host.Run(ctx, r); err != nil && c.guard != nil {
		c.guard.LogFailed(q, args, err)
	}
	return r.Answer, err
}

// maxCost returns the maximum cost of a message.
func (c *session) maxCost(m *message) int {
	if m.Kind != call {
		return budget.MinLimit
	}
	if op := c.ops[m.Op]; op != nil {
		return op.MaxRequest()
	}
	return budget.MinLimit
}

// encodeError returns the encoded result of a failed call.
func encodeError(m *message, err error) []byte {
	raw, tooLong := encode(&message{Kind: result, ID: m.ID, Error: pack(err)}, budget.MinLimit)
	if tooLong != nil {
		// Keep the beginning of an error that is too long.
		raw, _ = encode(&message{Kind: result, ID: m.ID, Error: &failure{Text: clip(err.Error(), maxText)}}, budget.MinLimit)
	}
	return raw
}

// trySend queues a message unless the client is slow to read.
func (c *session) trySend(m *message) {
	raw, err := encode(m, budget.MinLimit)
	if err != nil {
		return
	}
	select {
	case c.queue <- raw:
	default:
	}
}

// beat sends signs of life. A pong may take long: its ping waits behind a long request, also in the buffers of the
// remote shell.
func (c *session) beat() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.trySend(&message{Kind: alive})
		case <-c.ended:
			return
		}
	}
}

func (c *session) write(out io.Writer) {
	for {
		select {
		case <-c.ended:
			return
		default:
		}
		select {
		case raw := <-c.queue:
			batch, counted := raw, c.unwrittenCost(raw)
			for len(c.queue) > 0 && len(batch) < budget.MinLimit { // only this goroutine receives from it
				raw = <-c.queue
				batch, counted = append(batch, raw...), counted+c.unwrittenCost(raw)
			}
			if _, err := out.Write(batch); err != nil {
				c.end(nil) // the client has disconnected
				return
			}
			if counted > 0 {
				c.unwritten.Release(counted)
			}
		case <-c.ended:
			return
		}
	}
}
