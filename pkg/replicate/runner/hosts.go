package runner

import (
	"context"
	"errors"
	"sync"

	"zxfer/pkg/job"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
)

// hosts reaches every host once, however many jobs and targets need it.
type hosts struct {
	open func(*way.Way) job.Opener

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
	mu   sync.Mutex
	open *borrowed // nil until then
}

func newHosts(open func(*way.Way) job.Opener) *hosts {
	return &hosts{open: open, lines: map[line]*shared{}}
}

// through is the Opener of a way.
func (h *hosts) through(w *way.Way) job.Opener {
	return &through{Opener: h.open(w), hosts: h, way: w}
}

type through struct {
	job.Opener
	hosts *hosts
	way   *way.Way
}

// Open returns the host's Site. One that was lost is reached anew.
func (w *through) Open(ctx context.Context, host string) (site.Site, error) {
	key := line{host: host}
	if host != "" {
		key.rsh, key.noBootstrap = w.way.RSH, w.way.NoBootstrap
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
	if s.open != nil {
		if _, err := s.open.HostFacts(ctx); !errors.Is(err, site.ErrLost) {
			return s.open, nil
		}
		_ = s.open.Site.Close() // it is lost: what Close has to say is known
		s.open = nil
	}
	st, err := w.Opener.Open(ctx, host)
	if err != nil {
		return nil, err
	}
	s.open = &borrowed{Site: st}
	return s.open, nil
}

// close ends all connections.
func (h *hosts) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for key, s := range h.lines {
		if s.open != nil {
			errs = append(errs, s.open.Site.Close())
		}
		delete(h.lines, key)
	}
	return errors.Join(errs...)
}

// borrowed is a Site that others use too: who is done with it leaves it open.
type borrowed struct {
	site.Site
	mu    sync.Mutex
	facts *site.Facts // nil until they were asked for
}

// Facts do not change during a run. They are asked for only where needed: the
// host starts its back end for them.
func (b *borrowed) Facts(ctx context.Context) (site.Facts, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.facts == nil {
		f, err := b.Site.Facts(ctx)
		if err != nil {
			return f, err
		}
		b.facts = &f
	}
	return *b.facts, nil
}

// Close leaves the Site to the others.
func (b *borrowed) Close() error { return nil }
