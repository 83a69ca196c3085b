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

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// Transport is the way to an agent: its standard output and input.
type Transport interface {
	io.Reader
	io.Writer
	// Close ends the way and returns what is known of why it ended, such as
	// the remote shell's last words; nil if nothing is.
	Close() error
}

// cancelGrace is how long a cancelled call waits for the agent's answer: an
// interrupted receive saves its state in that time.
const cancelGrace = 20 * time.Second

// firstPings follow each other at once: the shortest of several round trips
// is near the network's, whatever else the hosts have to do at the start.
const firstPings = 8

// Remote is the Site of another host.
type Remote struct {
	host string
	t    Transport
	log  func(string)

	silence time.Duration
	rtt     atomic.Int64 // shortest round trip, ns
	pinged  atomic.Int64 // when the last ping was sent, UnixNano
	pongs   atomic.Int64
	again   chan struct{} // asks for the next ping at once

	out   chan []byte // messages to be written; the writer may block, callers not
	done  chan struct{}
	ended sync.Once
	err   error // why, set before done is closed

	mu    sync.Mutex
	next  uint64
	calls map[uint64]*pending
}

// pending is a call that waits for its result.
type pending struct {
	answer   chan *message
	progress chan transfer.Progress // of one, the newest
}

var _ site.Site = (*Remote)(nil)

// NewRemote waits for the agent's hello and returns its Site. host is the
// name that messages show; log is told what the agent logs, and what its
// shell printed. The transport is closed on failure.
//
// An agent of another protocol is refused (fault.Refused).
func NewRemote(ctx context.Context, host string, t Transport, log func(string)) (*Remote, error) {
	r := &Remote{host: host, t: t, log: log, silence: silence,
		out: make(chan []byte, 64), again: make(chan struct{}, 1), done: make(chan struct{}), calls: map[uint64]*pending{}}
	in := bufio.NewReaderSize(t, 64<<10)
	type greeting struct {
		version string
		err     error
	}
	greeted := make(chan greeting, 1)
	var noise []string
	go func() {
		v, err := readHello(in, func(line string) { noise = append(noise, line) })
		greeted <- greeting{v, err}
	}()
	var g greeting
	select {
	case g = <-greeted:
	case <-ctx.Done():
		_ = t.Close() // ends the reading goroutine
		return nil, fmt.Errorf("%s: %w", host, ctx.Err())
	}
	if g.err == nil {
		go r.read(in)
		go r.write()
		go r.keepAlive()
		return r, nil
	}
	why := t.Close()
	var other *mismatch
	switch {
	case errors.As(g.err, &other):
		return nil, fault.Refusef("install this zxfer there, or leave --no-bootstrap out", "%s: %w", host, other)
	case why != nil:
		return nil, fmt.Errorf("%s: %w", host, why)
	case len(noise) > 0:
		return nil, fmt.Errorf("%s: no agent answered; its shell said: %s", host, noise[len(noise)-1])
	}
	return nil, fmt.Errorf("%s: no agent answered: %w", host, g.err)
}

// lose ends the Remote; the first reason stays.
func (r *Remote) lose(err error) {
	r.ended.Do(func() {
		if why := r.t.Close(); why != nil {
			err = why
		}
		r.err = fmt.Errorf("%s: %w: %w", r.host, site.ErrLost, err)
		close(r.done)
	})
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
	heard := time.AfterFunc(r.silence, func() { r.lose(fmt.Errorf("it said nothing for %s", r.silence)) })
	defer heard.Stop()
	for {
		m, err := readMessage(in)
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the agent ended")
			}
			r.lose(err)
			return
		}
		heard.Reset(r.silence)
		r.handle(m)
	}
}

func (r *Remote) handle(m *message) {
	switch m.Kind {
	case pong:
		trip := time.Now().UnixNano() - r.pinged.Load()
		if old := r.rtt.Load(); trip > 0 && (old == 0 || trip < old) {
			r.rtt.Store(trip)
		}
		if r.pongs.Add(1) < firstPings {
			select {
			case r.again <- struct{}{}:
			default:
			}
		}
		return
	case logged:
		r.log(r.host + ": " + m.Text)
		return
	}
	r.mu.Lock()
	p := r.calls[m.ID]
	r.mu.Unlock()
	if p == nil {
		return // its caller gave up waiting
	}
	switch m.Kind {
	case result:
		select {
		case p.answer <- m:
		default: // a second answer to one call
		}
	case progress:
		var pr transfer.Progress
		if json.Unmarshal(m.Body, &pr) != nil || p.progress == nil {
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

func (r *Remote) keepAlive() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		r.pinged.Store(time.Now().UnixNano())
		_ = r.send(&message{Kind: ping}) // a lost host shows in done
		select {
		case <-tick.C:
		case <-r.again:
		case <-r.done:
			return
		}
	}
}

func (r *Remote) send(m *message) error {
	raw, err := encode(m)
	if err != nil {
		return err
	}
	select {
	case r.out <- raw:
		return nil
	case <-r.done:
		return r.err
	}
}

// call asks the agent and waits for its answer.
func (r *Remote) call(ctx context.Context, op string, args, into any, report func(transfer.Progress)) error {
	body, err := json.Marshal(args)
	if err != nil {
		return err
	}
	p := &pending{answer: make(chan *message, 1)}
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
	}()
	if err := r.send(&message{Kind: call, ID: id, Op: op, Body: body}); err != nil {
		return err
	}
	stopped := ctx.Done()
	var grace <-chan time.Time
	for {
		select {
		case m := <-p.answer:
			if m.Error != nil {
				return m.Error.unpack(r.host)
			}
			if into == nil {
				return nil
			}
			return json.Unmarshal(m.Body, into)
		case pr := <-p.progress:
			report(pr)
		case <-stopped:
			if err := r.send(&message{Kind: cancel, ID: id}); err != nil {
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

// Name is the host as it was typed.
func (r *Remote) Name() string { return r.host }

// RTT is the shortest round trip of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

// Close ends the connection, and with it the agent.
func (r *Remote) Close() error {
	r.lose(errors.New("closed"))
	return nil
}

// Facts asks the agent.
func (r *Remote) Facts(ctx context.Context) (f site.Facts, err error) {
	err = r.call(ctx, opFacts, none{}, &f, nil)
	return f, err
}

// List asks the agent.
func (r *Remote) List(ctx context.Context, q site.ListQuery) (l zfs.Listing, err error) {
	err = r.call(ctx, opList, q, &l, nil)
	return l, err
}

// DatasetOf asks the agent.
func (r *Remote) DatasetOf(ctx context.Context, path string) (dataset string, err error) {
	err = r.call(ctx, opDatasetOf, path, &dataset, nil)
	return dataset, err
}

// Properties asks the agent.
func (r *Remote) Properties(ctx context.Context, names, properties []string) (m map[string]map[string]zfs.Property, err error) {
	err = r.call(ctx, opProperties, propertiesArgs{names, properties}, &m, nil)
	return m, err
}

// Estimate asks the agent.
func (r *Remote) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	err = r.call(ctx, opEstimate, streams, &sizes, nil)
	return sizes, err
}

// Snapshot asks the agent.
func (r *Remote) Snapshot(ctx context.Context, snapshots []string) error {
	return r.call(ctx, opSnapshot, snapshots, nil, nil)
}

// Hold asks the agent.
func (r *Remote) Hold(ctx context.Context, tag string, snapshots []string) error {
	return r.call(ctx, opHold, holdArgs{tag, snapshots}, nil, nil)
}

// Release asks the agent.
func (r *Remote) Release(ctx context.Context, tag string, snapshots []string) error {
	return r.call(ctx, opRelease, holdArgs{tag, snapshots}, nil, nil)
}

// Bookmark asks the agent.
func (r *Remote) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return r.call(ctx, opBookmark, bookmarks, nil, nil)
}

// Destroy asks the agent.
func (r *Remote) Destroy(ctx context.Context, versions []string) error {
	return r.call(ctx, opDestroy, versions, nil, nil)
}

// CreateParents asks the agent.
func (r *Remote) CreateParents(ctx context.Context, dataset string) error {
	return r.call(ctx, opCreateParents, dataset, nil, nil)
}

// DiscardPartial asks the agent.
func (r *Remote) DiscardPartial(ctx context.Context, dataset string) error {
	return r.call(ctx, opDiscard, dataset, nil, nil)
}

// Digest asks the agent.
func (r *Remote) Digest(ctx context.Context, stream zfs.SendSpec) (d site.Digest, err error) {
	err = r.call(ctx, opDigest, stream, &d, nil)
	return d, err
}

// Offer asks the agent.
func (r *Remote) Offer(ctx context.Context, o wire.Offer) (t wire.Ticket, err error) {
	err = r.call(ctx, opOffer, o, &t, nil)
	return t, err
}

// Transfer asks the agent.
func (r *Remote) Transfer(ctx context.Context, t site.Task, report func(transfer.Progress)) (res transfer.Result, err error) {
	err = r.call(ctx, opTransfer, t, &res, report)
	return res, err
}
