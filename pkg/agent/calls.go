package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/remedy"
	"zxfer/pkg/transfer"
)

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

// Run runs a request on the host and checks its answer.
func (r *Remote) Run(ctx context.Context, q *hosts.Request) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", r.host, err)
	}
	body, err := json.Marshal(q.Args)
	if err != nil {
		return err
	}
	p := r.register(q, len(body))
	defer r.forget(p)
	if err := r.send(ctx, &message{Kind: call, ID: p.id, Op: p.op, Body: body}); err != nil {
		return err
	}
	if err := r.wait(ctx, p); err != nil {
		return err
	}
	return r.checkAnswer(p.op, q.CheckAnswer())
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
		err := m.Error.unpack(remedy.Host{Name: r.host, Shell: r.Shell})
		if errors.Is(err, hosts.ErrMalformed) {
			m.Error.Hint = fmt.Sprintf("zxfer there is %s, another build: %s", clip(r.version, maxVersion), versionHint)
			return m.Error.unpack(remedy.Host{Name: r.host, Shell: r.Shell})
		}
		return err
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
