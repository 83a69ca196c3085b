// Package agent lets a Site be on another host: a Server offers a Site's
// operations on an agent's standard input and output, and Remote is a Site
// that calls them. Messages are length-prefixed JSON; calls run side by side.
//
// It starts no process: how the other host is reached is package rsh's.
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
)

// Times of the keepalive. A client pings; an agent or a client that heard
// nothing for silence takes the other for dead.
const (
	pingEvery = 5 * time.Second
	silence   = 30 * time.Second
	// endWithin bounds how long an agent waits for its operations to wind
	// down: a receive that was cut off saves its state in that time.
	endWithin = 60 * time.Second
)

// Server serves one Site to one client.
type Server struct {
	Site    hosts.Host
	Version string
	// Guard, where set, judges every call before it is carried out.
	Guard *authz.Guard
	// Note, where not "", is a line that the client's user is told at the start.
	Note string
	// Silence is how long the agent waits for a sign of life; 0 = 30 seconds.
	Silence time.Duration

	session atomic.Pointer[session] // while it serves
}

// What a gated session may have at once. An honest client has a few calls for
// each stream that moves, and one request that is long.
const (
	maxGated    = 256       // calls, most of which wait
	maxShort    = 4         // that do what takes moments: each runs a process or more
	maxLong     = 64        // that last as long as a stream
	maxInFlight = 40 << 20  // what requests cost that were not answered yet; one alone may cost more
	maxUnread   = maxAnswer // bytes of answers that wait to be written
)

// Serve answers calls until the input ends, the other end falls silent, or
// ctx ends; then everything that was started has ended too, or was given a
// minute to. A clean end of input and the end of ctx return nil. It may return
// while a read of in or a write of out still waits.
func (s *Server) Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	quiet := s.Silence
	if quiet <= 0 {
		quiet = silence
	}
	c := newSession(ctx, s.Site, s.Guard)
	s.session.Store(c)
	c.queue <- []byte(hello(s.Version))
	if s.Note != "" {
		c.offer(&message{Kind: logged, Text: s.Note})
	}
	c.heard = time.AfterFunc(quiet, func() {
		c.end(fmt.Errorf("heard nothing for %s: the other end is gone", quiet))
	})
	defer c.heard.Stop()
	defer context.AfterFunc(ctx, func() { c.end(nil) })()
	go c.write(out)
	go func() { c.end(c.read(bufio.NewReaderSize(in, 64<<10), quiet)) }()
	<-c.gone
	c.windDown()
	if errors.Is(c.err, io.EOF) {
		return nil
	}
	return c.err
}

// Log sends a line to the client, for the user. It never waits: lines that a
// slow client does not take are dropped, as are those outside Serve.
func (s *Server) Log(text string) {
	if c := s.session.Load(); c != nil {
		c.offer(&message{Kind: logged, Text: text})
	}
}

// session is one client's.
type session struct {
	site  hosts.Host
	guard *authz.Guard
	ops   map[string]served
	heard *time.Timer
	queue chan []byte // what is to be written: a client that does not read must not stop the reading of its cancels

	once sync.Once
	gone chan struct{} // closed when nobody is to be told anything any more
	err  error         // why, set before gone is closed

	ctx     context.Context // of all calls
	stop    context.CancelFunc
	mu      sync.Mutex
	over    bool // no further call starts
	running map[uint64]context.CancelFunc
	cost    int // of the requests that run
	streams int // of those, the long ones
	calls   sync.WaitGroup

	short  *semaphore.Weighted // of calls; nil without a gate
	unread *semaphore.Weighted // of bytes in answers
}

func newSession(ctx context.Context, s hosts.Host, guard *authz.Guard) *session {
	c := &session{site: s, guard: guard, ops: operations(), queue: make(chan []byte, 64), gone: make(chan struct{}),
		running: map[uint64]context.CancelFunc{}}
	if guard != nil {
		c.short, c.unread = semaphore.NewWeighted(maxShort), semaphore.NewWeighted(maxUnread)
	}
	// Calls end after gone is closed, so that no client takes the end of its
	// agent for an answer.
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// end ends the session; the first reason stays.
func (c *session) end(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.over = true
		c.mu.Unlock()
		c.err = err
		close(c.gone)
		c.stop()
	})
}

// windDown waits until all calls have ended, and closes the Site.
func (c *session) windDown() {
	ended := make(chan struct{})
	go func() { c.calls.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endWithin):
	}
	_ = c.site.Close() // nobody is left to be told
}

func (c *session) read(in io.Reader, quiet time.Duration) error {
	in = sign{in, func() { c.heard.Reset(quiet) }}
	for {
		m, err := readMessage(in, maxRequest, c.mayCost)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return errors.New("the input ended within a message")
			}
			return err
		}
		switch m.Kind {
		case ping:
			// Where the queue is full, what fills it is sign of life enough.
			c.offer(&message{Kind: pong, ID: m.ID})
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

// start runs a call on a goroutine of its own.
func (c *session) start(m *message) error {
	ctx, stop := context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[m.ID] != nil {
		stop()
		return fmt.Errorf("call %d is running already", m.ID)
	}
	if c.over {
		stop()
		return nil
	}
	if c.guard != nil && len(c.running) >= maxGated {
		stop()
		return fmt.Errorf("more than %d calls at once", maxGated)
	}
	refused := m.tooMuch
	switch {
	case c.guard == nil || refused != nil:
	case c.cost > 0 && c.cost+m.cost > maxInFlight:
		refused = fault.Failf("ask for less at once", "%s: requests of more than %d bytes at once", m.Op, maxInFlight)
	case c.ops[m.Op].long && c.streams >= maxLong:
		refused = fault.Failf("ask for less at once", "%s: more than %d streams at once", m.Op, maxLong)
	}
	if refused != nil {
		m.Body = nil
	}
	c.running[m.ID] = stop
	c.cost += m.cost
	if c.ops[m.Op].long {
		c.streams++
	}
	c.calls.Go(func() {
		defer stop()
		var answer []byte
		if refused != nil {
			if c.guard != nil {
				c.guard.Unread(m.Op, refused)
			}
			answer = failed(m, refused)
		} else if c.short != nil && !c.ops[m.Op].long {
			// A turn ends when the answer waits to be written, no more than
			// maxUnread of which may.
			if err := c.short.Acquire(ctx, 1); err != nil {
				answer = failed(m, err)
			} else {
				defer c.short.Release(1)
			}
		}
		if answer == nil {
			answer = c.answer(ctx, m)
		}
		c.reply(answer) // who reads none of its answers has calls that do not end
		c.mu.Lock()
		delete(c.running, m.ID)
		c.cost -= m.cost
		if c.ops[m.Op].long {
			c.streams--
		}
		c.mu.Unlock()
	})
	return nil
}

// reply has an answer written.
func (c *session) reply(answer []byte) {
	if n := c.counted(answer); n > 0 && c.unread.Acquire(c.ctx, n) != nil {
		return // nobody is there any more
	}
	select {
	case c.queue <- answer:
	case <-c.gone:
	}
}

// counted is how much of an encoded message counts against what waits to be
// written: nothing of what offer writes, too.
func (c *session) counted(raw []byte) int64 {
	if c.unread == nil || len(raw)-lengthSize <= budget.Small {
		return 0
	}
	return int64(min(len(raw), maxUnread))
}

// answer carries out a call and returns its encoded result.
func (c *session) answer(ctx context.Context, m *message) []byte {
	value, err := c.carryOut(ctx, m)
	answer := &message{Kind: result, ID: m.ID}
	if err == nil {
		answer.Body, err = json.Marshal(value)
	}
	if err == nil {
		raw, tooLong := encode(answer, maxAnswer)
		if tooLong == nil {
			return raw
		}
		err = fmt.Errorf("answer of %s: %w", m.Op, tooLong)
	}
	return failed(m, err)
}

func (c *session) carryOut(ctx context.Context, m *message) (any, error) {
	o, ok := c.ops[m.Op]
	switch {
	case ok:
		return o.carryOut(ctx, c.site, c.guard, m.Body, func(p transfer.Progress) {
			if body, err := json.Marshal(p); err == nil {
				c.offer(&message{Kind: progress, ID: m.ID, Body: body})
			}
		})
	case c.guard != nil: // also of what the agent does not have: that is for the audit to know
		return nil, c.guard.Unknown(authz.Request{Op: m.Op, Body: m.Body})
	}
	return nil, fmt.Errorf("%w %q", ErrUnknownOperation, m.Op)
}

// mayCost is the most that a message may cost to take in.
func (c *session) mayCost(m *message) int {
	if m.Kind != call {
		return budget.Small
	}
	return max(c.ops[m.Op].request, budget.Small)
}

// failed is the answer of a call that failed.
func failed(m *message, err error) []byte {
	raw, tooLong := encode(&message{Kind: result, ID: m.ID, Error: pack(err)}, budget.Small)
	if tooLong != nil {
		// An error so long tells nothing; its beginning does.
		raw, _ = encode(&message{Kind: result, ID: m.ID, Error: &failure{Text: clip(err.Error(), maxText)}}, budget.Small)
	}
	return raw
}

// offer writes a message unless the client is slow to read.
func (c *session) offer(m *message) {
	raw, err := encode(m, budget.Small)
	if err != nil {
		return
	}
	select {
	case c.queue <- raw:
	default:
	}
}

func (c *session) write(out io.Writer) {
	for {
		select {
		case <-c.gone:
			return
		default:
		}
		select {
		case raw := <-c.queue:
			batch, counted := raw, c.counted(raw)
			for len(c.queue) > 0 && len(batch) < budget.Small { // only this takes from it
				raw = <-c.queue
				batch, counted = append(batch, raw...), counted+c.counted(raw)
			}
			if _, err := out.Write(batch); err != nil {
				c.end(nil) // a client that takes nothing is gone
				return
			}
			if counted > 0 {
				c.unread.Release(counted)
			}
		case <-c.gone:
			return
		}
	}
}
