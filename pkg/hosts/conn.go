package hosts

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/tools/txtar"

	"zxfer/pkg/remedy"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Conn is a connection to one host of a Set. It is safe for concurrent use.
type Conn struct {
	address Address
	open    Opener
	// connecting is a lock with one slot that the goroutine holds which connects. It guards
	// lastError and reached. lastError is the error of the last attempt. reached is set after the
	// first success.
	connecting chan struct{}
	lastError  error
	reached    bool
	attempts   atomic.Int64
	// askingFacts and askingSystem are locks with one slot, so that concurrent callers share an answer.
	askingFacts, askingSystem chan struct{}

	mu    sync.Mutex
	host  Host      // nil if not open
	used  time.Time // when host was last used
	facts *Facts
	// system is the last answer of System, at systemTime.
	system     *sysinfo.System
	systemTime time.Time
}

// Name returns the host as the user typed it, or "" for the local host.
func (h *Conn) Name() string { return h.address.Host }

// Local reports whether the connection is to the local host.
func (h *Conn) Local() bool { return h.address.Host == "" }

// Label returns the host's name for messages.
func (h *Conn) Label() string {
	if h.Local() {
		return LocalName
	}
	return h.address.Host
}

// At returns the host for the commands of hints.
func (h *Conn) At() remedy.Host {
	at := remedy.Host{Name: h.address.Host, Shell: h.address.RSH}
	if o, ok := h.open.(interface{ RemoteShell(l Address) string }); ok {
		at.Shell = o.RemoteShell(h.address)
	}
	return at
}

// IsKnownHost reports whether a name names a host, for hints.
func (h *Conn) IsKnownHost(name string) bool {
	o, ok := h.open.(interface {
		IsKnownHost(l Address, name string) bool
	})
	return ok && o.IsKnownHost(h.address, name)
}

// Command returns a command line that runs argv on the host, for hints.
func (h *Conn) Command(argv ...string) string { return h.At().Command(argv...) }

// Shell returns a stack that connects to listeners of the host through its remote shell.
func (h *Conn) Shell() tcp.Stack { return &shell{conn: h} }

// RTT returns the shortest round-trip time to the host, or 0 if it is local or unknown.
func (h *Conn) RTT() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.host == nil {
		return 0
	}
	return h.host.RTT()
}

// Facts returns the host's facts. They are cached for each connection, because the host starts its
// back end to answer.
func (h *Conn) Facts(ctx context.Context) (f Facts, err error) {
	select {
	case h.askingFacts <- struct{}{}:
		defer func() { <-h.askingFacts }()
	case <-ctx.Done():
		return f, ctx.Err()
	}
	h.mu.Lock()
	known := h.facts
	h.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	var of Host
	err = h.Retry(ctx, func(on Host) error { of = on; f, err = Call(ctx, on, OpFacts, None{}); return err })
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.host == of {
		h.facts = &f
	}
	return f, err
}

// maxSystemAge is how long System returns the same answer. The batches of a run share one.
const maxSystemAge = time.Minute

// System returns what the host's system files report. It returns nil if the host does not permit or
// support the request. The answer may be a minute old.
func (h *Conn) System(ctx context.Context) *sysinfo.System {
	select {
	case h.askingSystem <- struct{}{}:
		defer func() { <-h.askingSystem }()
	case <-ctx.Done():
		return nil
	}
	h.mu.Lock()
	known, age := h.system, time.Since(h.systemTime)
	h.mu.Unlock()
	if age < maxSystemAge {
		return known
	}
	var of Host
	var text string
	err := h.Retry(ctx, func(on Host) (err error) { of = on; text, err = Call(ctx, on, OpCapture, true); return err })
	s := parseSystem(text, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil && of != nil && h.host == of {
		h.system, h.systemTime = s, time.Now()
	}
	return s
}

// parseSystem returns the facts in an answer of OpCapture, or nil.
func parseSystem(text string, err error) *sysinfo.System {
	if err != nil {
		return nil
	}
	root, err := txtar.FS(txtar.Parse([]byte(text)))
	if err != nil {
		return nil
	}
	s := sysinfo.ReadSystem(root)
	return &s
}

// List lists datasets.
func (h *Conn) List(ctx context.Context, q ListQuery) (zfs.Listing, error) {
	return Call(ctx, By(h.Retry), OpList, q)
}

// Sync writes out the open transaction group of the dataset's pool, so that "written" includes the
// latest changes. Errors are ignored: the value is then a few seconds old.
func (h *Conn) Sync(ctx context.Context, dataset string) {
	_ = Run(ctx, h, OpSync, dataset)
}

// Holds returns the hold tags of snapshots, by snapshot name.
func (h *Conn) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return Call(ctx, By(h.Retry), OpHolds, snapshots)
}

// Created returns the creation times of the snapshots that exist, by name.
func (h *Conn) Created(ctx context.Context, snapshots []string) (map[string]time.Time, error) {
	found, err := h.Properties(ctx, snapshots, []string{"creation"})
	if err != nil {
		return nil, err
	}
	created := make(map[string]time.Time, len(found))
	for name, of := range found {
		seconds, err := strconv.ParseInt(of["creation"].Value, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %s has the invalid time %q", h.Label(), name, of["creation"].Value)
		}
		created[name] = time.Unix(seconds, 0)
	}
	return created, nil
}

// Properties returns properties by dataset or version name.
func (h *Conn) Properties(ctx context.Context, names, properties []string) (PropertiesByName, error) {
	return Call(ctx, By(h.Retry), OpProperties, PropertyQuery{Names: names, Properties: properties})
}

// Run runs a request without a retry.
func (h *Conn) Run(ctx context.Context, r *Request) error { return By(h.Do).Run(ctx, r) }

// Require connects and returns a refusal if the host cannot run an operation.
func (h *Conn) Require(ctx context.Context, op Operation) error {
	return h.Do(ctx, func(on Host) error {
		if !on.Supports(op) {
			return Unsupported(on.Name(), op)
		}
		return nil
	})
}

// Do calls f with the open Host. If the connection is lost, the next call connects again.
func (h *Conn) Do(ctx context.Context, f func(Host) error) error {
	on, err := h.Connect(ctx)
	if err != nil {
		return err
	}
	err = f(on)
	h.noteResult(ctx, on, err)
	return err
}

// Connect returns the open Host, and opens it if necessary. Unlike Do, it does not notice if the
// connection is lost later.
func (h *Conn) Connect(ctx context.Context) (Host, error) {
	before := h.attempts.Load()
	select {
	case h.connecting <- struct{}{}:
		defer func() { <-h.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if on := h.alive(ctx); on != nil {
		return on, nil
	}
	if h.lastError != nil && h.attempts.Load() != before {
		return nil, h.lastError // another goroutine tried during the wait
	}
	on, err := h.open.Open(ctx, h.address)
	if err != nil && ctx.Err() != nil {
		return nil, err // only this caller was interrupted
	}
	h.attempts.Add(1)
	if err != nil && h.reached {
		// It could be reached before, so this failure may be temporary.
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	if h.lastError = err; err != nil {
		return nil, err
	}
	h.reached = true
	h.mu.Lock()
	defer h.mu.Unlock()
	h.host, h.used = on, time.Now()
	return on, nil
}

// idleCheckAfter is the idle time after which a connection is tested before use, because not every
// operation can be retried.
const idleCheckAfter = time.Second

// alive returns the open Host, or nil if there is none or its connection was lost.
func (h *Conn) alive(ctx context.Context) Host {
	h.mu.Lock()
	on, ask := h.host, !h.Local() && time.Since(h.used) > idleCheckAfter
	h.mu.Unlock()
	if on == nil || !ask {
		return on
	}
	_, err := Call(ctx, on, OpHostFacts, None{})
	h.noteResult(ctx, on, err)
	if errors.Is(err, ErrLost) {
		return nil
	}
	return on
}

// noteResult records the result of an operation on on in ctx. If the connection was lost, it closes
// on. It does not close a Host that replaced on.
func (h *Conn) noteResult(ctx context.Context, on Host, err error) {
	h.mu.Lock()
	lost := h.host == on && errors.Is(err, ErrLost)
	switch {
	case lost:
		h.host, h.facts, h.system, h.systemTime = nil, nil, nil, time.Time{}
	case h.host == on && (err == nil || ctx.Err() == nil): // otherwise the host sent no reply
		h.used = time.Now()
	}
	h.mu.Unlock()
	if lost {
		_ = on.Close() // may take long; its error is known
	}
}

func (h *Conn) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.host == nil {
		return nil
	}
	on := h.host
	h.host = nil
	return on.Close()
}
