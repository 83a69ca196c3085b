package job

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/site"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// end is one side of a job: a host that is reached when it is first needed,
// and again after its connection was lost.
type end struct {
	role string // source, target
	host string // as typed, "" for this host
	open Opener

	mu      sync.Mutex
	site    site.Site
	reached bool // at least once
	// missed is why it could not be reached the first time: those who ask at the
	// same time need not find out again.
	missed error
}

// label is the host as messages name it.
func (e *end) label() string {
	if e.host == "" {
		return "local"
	}
	return e.host
}

// The methods of a meet.Host.

// Local tells this host.
func (e *end) Local() bool { return e.host == "" }

// Label is label.
func (e *end) Label() string { return e.label() }

// Do is do.
func (e *end) Do(ctx context.Context, f func(site.Site) error) error { return e.do(ctx, f) }

// RTT is rtt.
func (e *end) RTT() time.Duration { return e.rtt() }

// Relay leads to a loopback address of the host through the remote shell.
func (e *end) Relay(ctx context.Context, address string) (string, error) {
	return e.open.Relay(ctx, e.host, address)
}

// get returns the open Site, opening it if need be.
func (e *end) get(ctx context.Context) (site.Site, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.missed != nil {
		return nil, e.missed
	}
	if e.site == nil {
		st, err := e.open.Open(ctx, e.host)
		if err != nil && e.reached {
			// It could be reached before: this, too, may pass.
			return nil, fmt.Errorf("%w: %w", site.ErrLost, err)
		}
		if err != nil {
			e.missed = err
			return nil, err
		}
		e.site, e.reached = st, true
	}
	return e.site, nil
}

// drop closes a Site whose connection was lost, so that the next get reaches
// the host anew. Another Site that was opened meanwhile stays.
func (e *end) drop(st site.Site) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if st != nil && e.site == st {
		_ = e.site.Close() // it is lost: what Close has to say is known
		e.site = nil
	}
}

func (e *end) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.site != nil {
		_ = e.site.Close() // results are in; the agent ends with its stdin
		e.site = nil
	}
}

// do calls f with the Site and drops the Site if it turns out to be lost.
func (e *end) do(ctx context.Context, f func(site.Site) error) error {
	st, err := e.get(ctx)
	if err != nil {
		return err
	}
	err = f(st)
	if errors.Is(err, site.ErrLost) {
		e.drop(st)
	}
	return err
}

func (e *end) facts(ctx context.Context) (f site.Facts, err error) {
	err = e.do(ctx, func(st site.Site) error { f, err = st.Facts(ctx); return err })
	return f, err
}

// system is what the host's files tell; nil where it does not say: to a
// restricted key, or of another version.
func (e *end) system(ctx context.Context) *sysinfo.System {
	var text []byte
	err := e.do(ctx, func(st site.Site) (err error) { text, err = st.Capture(ctx, true); return err })
	if err != nil {
		return nil
	}
	h, err := hostOf(Archive{Host: e.label(), Text: text})
	if err != nil {
		return nil
	}
	return h.System
}

func (e *end) list(ctx context.Context, q site.ListQuery) (l zfs.Listing, err error) {
	err = e.do(ctx, func(st site.Site) error { l, err = st.List(ctx, q); return err })
	return l, err
}

func (e *end) properties(ctx context.Context, names, properties []string) (m map[string]map[string]zfs.Property, err error) {
	err = e.do(ctx, func(st site.Site) error { m, err = st.Properties(ctx, names, properties); return err })
	return m, err
}

// ivSets returns the IV set GUIDs of versions, by the version's GUID.
func (e *end) ivSets(ctx context.Context, versions []string) (map[uint64]string, error) {
	m, err := e.properties(ctx, versions, []string{"guid", "ivsetguid"})
	if err != nil {
		return nil, err
	}
	out := make(map[uint64]string, len(m))
	for name, props := range m {
		guid, err := zfs.ParseGUID(props["guid"].Value)
		if err != nil {
			return nil, fmt.Errorf("%s: guid of %s: %w", e.label(), name, err)
		}
		if iv := props["ivsetguid"].Value; iv != "-" && iv != "" {
			out[guid] = iv
		}
	}
	return out, nil
}

// rtt is the round trip to the host, 0 for this one or while unknown.
func (e *end) rtt() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.site == nil {
		return 0
	}
	return e.site.RTT()
}
