package runner

import (
	"context"
	"errors"
	"sync"

	"zxfer/pkg/job"
	"zxfer/pkg/replicate"
	"zxfer/pkg/site"
)

// hosts reaches every host once, however many jobs and targets need it.
type hosts struct {
	open func(*replicate.Transfer) job.Opener

	mu    sync.Mutex
	lines map[line]*shared
}

// line is a way to a host.
type line struct {
	host, rsh   string
	noBootstrap bool
}

// shared is one host, opened when it is first needed.
type shared struct {
	mu    sync.Mutex
	site  site.Site
	facts site.Facts
}

func newHosts(open func(*replicate.Transfer) job.Opener) *hosts {
	return &hosts{open: open, lines: map[line]*shared{}}
}

// through is the Opener of a transfer's way.
func (h *hosts) through(t *replicate.Transfer) job.Opener {
	return &way{Opener: h.open(t), hosts: h, transfer: t}
}

type way struct {
	job.Opener
	hosts    *hosts
	transfer *replicate.Transfer
}

// Open returns the host's Site. One that was lost is reached anew.
func (w *way) Open(ctx context.Context, host string) (site.Site, error) {
	key := line{host: host}
	if host != "" {
		key.rsh, key.noBootstrap = w.transfer.RSH, w.transfer.NoBootstrap
	}
	w.hosts.mu.Lock()
	s := w.hosts.lines[key]
	if s == nil {
		s = &shared{}
		w.hosts.lines[key] = s
	}
	w.hosts.mu.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.site != nil {
		if _, err := s.site.Facts(ctx); !errors.Is(err, site.ErrLost) {
			return &borrowed{s.site, s.facts}, nil
		}
		_ = s.site.Close() // it is lost: what Close has to say is known
		s.site = nil
	}
	st, err := w.Opener.Open(ctx, host)
	if err != nil {
		return nil, err
	}
	facts, err := st.Facts(ctx)
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	s.site, s.facts = st, facts
	return &borrowed{st, facts}, nil
}

// close ends all connections.
func (h *hosts) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for key, s := range h.lines {
		if s.site != nil {
			errs = append(errs, s.site.Close())
		}
		delete(h.lines, key)
	}
	return errors.Join(errs...)
}

// borrowed is a Site that others use too: who is done with it leaves it open.
type borrowed struct {
	site.Site
	facts site.Facts
}

// Facts do not change during a run.
func (b *borrowed) Facts(context.Context) (site.Facts, error) { return b.facts, nil }

// Close leaves the Site to the others.
func (b *borrowed) Close() error { return nil }
