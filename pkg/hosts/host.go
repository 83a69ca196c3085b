package hosts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/tools/txtar"

	"zxfer/pkg/fault"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// Conn is one host of a Set.
type Conn struct {
	address Address
	open    Opener
	// connecting is had by who reaches the host: the others wait. It guards missed,
	// why the last try failed, and reached, that one did not.
	connecting chan struct{}
	lastError  error
	reached    bool
	attempts   atomic.Int64

	mu    sync.Mutex
	site  Host      // nil while it is not open
	used  time.Time // when site was last used
	facts *Facts
}

// Name is the host as it was typed, "" for this one.
func (h *Conn) Name() string { return h.address.Host }

// Local tells this host.
func (h *Conn) Local() bool { return h.address.Host == "" }

// Label is the host as messages name it.
func (h *Conn) Label() string {
	if h.Local() {
		return "local"
	}
	return h.address.Host
}

// idleCheckAfter is how long a connection may have been left alone before it is asked
// whether it is still there: not every operation bears a second try.
const idleCheckAfter = time.Second

// Connect returns the open Site, opening it if need be. Who calls it instead of Do
// cannot rely on a Site that is lost being noticed.
func (h *Conn) Connect(ctx context.Context) (Host, error) {
	before := h.attempts.Load()
	select {
	case h.connecting <- struct{}{}:
		defer func() { <-h.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if st := h.alive(ctx); st != nil {
		return st, nil
	}
	if h.lastError != nil && h.attempts.Load() != before {
		return nil, h.lastError // it was tried while this waited
	}
	st, err := h.open.Open(ctx, h.address)
	h.attempts.Add(1)
	if err != nil && h.reached {
		// It could be reached before: this, too, may pass.
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if h.lastError = err; err != nil {
		return nil, err
	}
	h.reached = true
	h.mu.Lock()
	defer h.mu.Unlock()
	h.site, h.used = st, time.Now()
	return st, nil
}

// alive returns the open Site, nil where there is none or its connection was
// lost.
func (h *Conn) alive(ctx context.Context) Host {
	h.mu.Lock()
	st, ask := h.site, !h.Local() && time.Since(h.used) > idleCheckAfter
	h.mu.Unlock()
	if st == nil || !ask {
		return st
	}
	_, err := st.HostFacts(ctx)
	h.noteResult(ctx, st, err)
	if errors.Is(err, ErrLost) {
		return nil
	}
	return st
}

// noteResult notes how an operation on a Site ended in ctx, and leaves one that turned
// out to be lost. Another that was opened meanwhile stays.
func (h *Conn) noteResult(ctx context.Context, st Host, err error) {
	h.mu.Lock()
	lost := h.site == st && errors.Is(err, ErrLost)
	switch {
	case lost:
		h.site, h.facts = nil, nil
	case h.site == st && (err == nil || ctx.Err() == nil): // else nothing was heard of it
		h.used = time.Now()
	}
	h.mu.Unlock()
	if lost {
		_ = st.Close() // which may take a while; what it has to say is known
	}
}

// Do calls f with the Site. One that turns out to be lost is left, so that the
// next call reaches the host anew.
func (h *Conn) Do(ctx context.Context, f func(Host) error) error {
	st, err := h.Connect(ctx)
	if err != nil {
		return err
	}
	err = f(st)
	h.noteResult(ctx, st, err)
	return err
}

// retryTimeout is how long a host that was reached before is tried anew, as what resets a
// connection may refuse the next for a moment.
const retryTimeout = 10 * time.Second

// Retry is Do for what may be done twice, as the idempotent operations of a Site:
// where the connection is lost meanwhile, f is called once more, with one made anew.
// What stays lost was interrupted: nothing is known to have failed.
func (h *Conn) Retry(ctx context.Context, f func(Host) error) error {
	var lost time.Time // when it first was
	for calls, misses := 0, 0; ; {
		called := false
		err := h.Do(ctx, func(st Host) error { called = true; return f(st) })
		switch {
		case !errors.Is(err, ErrLost), ctx.Err() != nil:
			return err
		case called:
			calls++
		case fault.ClassOf(err) == fault.Refused: // as it always will be
			return err
		default:
			misses++
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		var pause time.Duration
		if misses > 0 {
			pause = Backoff(misses)
		}
		if calls == 2 || time.Since(lost)+pause > retryTimeout {
			return fault.Interrupt("", err)
		}
		if !Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// Backoff is the pause before a try: it doubles from half a second up to half a
// minute, with jitter so that what was cut together does not come back in step.
func Backoff(try int) time.Duration {
	const first, longest = 500 * time.Millisecond, 30 * time.Second
	d := min(longest, first<<min(try-1, 16))
	return d/2 + rand.N(d/2+1)
}

// Sleep tells whether it could sleep for d before ctx ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (h *Conn) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.site == nil {
		return nil
	}
	st := h.site
	h.site = nil
	return st.Close()
}

// Relay leads to a loopback address of the host through the remote shell.
func (h *Conn) Relay(ctx context.Context, address string, refused func(error)) (string, error) {
	return h.open.Relay(ctx, h.address, address, refused)
}

// RTT is the round trip to the host, 0 for this one or while unknown.
func (h *Conn) RTT() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.site == nil {
		return 0
	}
	return h.site.RTT()
}

// Facts are asked for once: the host starts its back end for them.
func (h *Conn) Facts(ctx context.Context) (f Facts, err error) {
	h.mu.Lock()
	known := h.facts
	h.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	var of Host
	err = h.Retry(ctx, func(st Host) error { of = st; f, err = st.Facts(ctx); return err })
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.site == of {
		h.facts = &f
	}
	return f, err
}

// System is what the host's files tell; nil where it does not say: to a
// restricted key, or of another version.
func (h *Conn) System(ctx context.Context) *sysinfo.System {
	text, err := Call(ctx, h.Retry, Measurer.Capture, true)
	if err != nil {
		return nil
	}
	root, err := txtar.FS(txtar.Parse(text))
	if err != nil {
		return nil
	}
	s := sysinfo.ReadSystem(root)
	return &s
}

// List surveys datasets.
func (h *Conn) List(ctx context.Context, q ListQuery) (zfs.Listing, error) {
	return Call(ctx, h.Retry, Lister.List, q)
}

// Sync has the pool of a dataset write out its open transaction group, so that "written" includes
// the last changes. A host that may not or cannot do it is looked at as it is: whatever else is
// asked of it tells why.
func (h *Conn) Sync(ctx context.Context, dataset string) {
	_ = h.Do(ctx, WithRole(func(p Healer) error { return p.Sync(ctx, dataset) }))
}

// Holds reads the tags of the holds on snapshots, by their names.
func (h *Conn) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return Call(ctx, h.Retry, Lister.Holds, snapshots)
}

// Created is when snapshots were taken, by name, of those that are there.
func (h *Conn) Created(ctx context.Context, snapshots []string) (map[string]time.Time, error) {
	found, err := h.Properties(ctx, snapshots, []string{"creation"})
	if err != nil {
		return nil, err
	}
	taken := make(map[string]time.Time, len(found))
	for name, of := range found {
		seconds, err := strconv.ParseInt(of["creation"].Value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %s was taken at %q, which is no time", h.Label(), name, of["creation"].Value)
		}
		taken[name] = time.Unix(seconds, 0)
	}
	return taken, nil
}

// Properties reads properties, by name of what has them.
func (h *Conn) Properties(ctx context.Context, names, properties []string) (m map[string]map[string]zfs.Property, err error) {
	err = h.Retry(ctx, func(st Host) error { m, err = st.Properties(ctx, names, properties); return err })
	return m, err
}
