package connect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// linkDeadline is how long both ends wait for the connections of a link. If another path remains, they wait only
// for searchDeadline, until data has passed. A connection without data is tried again after a timeout, and waits for
// probeDeadline.
const (
	linkDeadline   = 30 * time.Second
	searchDeadline = 8 * time.Second
	probeDeadline  = 3 * time.Second
)

// Search finds the path between two hosts: the first transfer tries each one in turn. Several transfers may use a
// Search concurrently.
type Search struct {
	source, target Side
	requested      transport.Settings
	log            func(string)
	first          Link // the first path that is routable
	given          bool // the first path is the only one, and nothing was searched for it
	certain        bool // the last path always works
	probeWait      time.Duration

	mu sync.Mutex
	progress
}

// progress is how far a search is.
type progress struct {
	link       Link                 // the path to try, or the one that works
	remaining  []transport.Settings // paths that were not tried
	rejected   []string             // paths that failed, with the reasons
	found      bool                 // data has passed the link, or a connection without data
	noPath     bool                 // all paths failed
	unroutable bool                 // the first path has no address
}

// NewSearch returns a search. Its first path is the first routable one. It chooses the listener, its address and
// the number of connections from its arguments alone. log gets each change of the path.
func NewSearch(w transport.Settings, source, target Side, log func(string)) (*Search, error) {
	s := &Search{source: source, target: target, requested: w, log: log, probeWait: probeDeadline, progress: progress{remaining: candidates(w, source, target)}}
	err := s.advance()
	s.first = s.link
	if s.given = !s.first.searched() && len(s.rejected) == 0; s.given {
		s.remaining = nil
	}
	if n := len(s.remaining); err == nil && n > 0 && s.remaining[n-1].Wire == transport.SSH {
		last := s.newLink(s.remaining[n-1])
		s.certain = last.chooseWire() == nil && last.carrier.choose(&last, source, target) == nil
	}
	return s, err
}

// advance takes the next path that is routable. On error none remains.
func (s *Search) advance() error {
	for {
		l := s.newLink(s.remaining[0])
		s.remaining = s.remaining[1:]
		l.remaining = len(s.remaining)
		if err := l.chooseWire(); err != nil {
			return err
		}
		err := l.carrier.choose(&l, s.source, s.target)
		if !errors.As(err, new(*unroutable)) {
			l.last = len(s.rejected) > 0 && len(s.remaining) == 0
			s.link = l
			return err
		}
		s.unroutable = s.unroutable || len(s.rejected) == 0
		s.rejected = append(slices.Clip(s.rejected), l.path()+": "+err.Error())
		if len(s.remaining) == 0 {
			return err
		}
	}
}

func (s *Search) newLink(w transport.Settings) Link {
	return Link{Settings: w, requested: s.requested, source: s.source, target: s.target, deadline: linkDeadline}
}

// First returns the first link of the search.
func (s *Search) First() Link { return s.first }

// Link returns the link that works, or the one that is to be tried. If all failed, it returns the first.
func (s *Search) Link() Link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noPath {
		return s.first
	}
	return s.link
}

// Certain reports whether a path always works, or no path is searched: within a host, through a remote shell or with nc.
// Otherwise call Probe before the first change, to know whether data passes.
func (s *Search) Certain() bool {
	return s.certain || !s.first.searched()
}

// searched reports whether the link may not work. ssh and nc are only tried if the user requested them.
func (l *Link) searched() bool {
	return l.Wire != Local && l.Wire != transport.SSH && l.Wire != transport.NC
}

// Run is the function Run over the path of the search. Until data has passed one, a transfer whose connections fail
// moves over the next path.
func (s *Search) Run(ctx context.Context, from From, to To, count Count, report func(Progress)) (Result, error) {
	return s.run(ctx, func(l Link) (Result, failure, error) {
		return run(ctx, l, from, to, count, func(p Progress) {
			if p.Bytes > count.Done {
				s.accept(l)
			}
			if report != nil {
				report(p)
			}
		})
	})
}

// Probe finds the path with connections that carry no data. If all paths fail, Result has NoPath, and the error is nil. If
// one of them failed by a timeout, which may be temporary, Probe tries all again.
func (s *Search) Probe(ctx context.Context) error {
	s.mu.Lock()
	known := s.given || s.found
	before := s.progress
	s.mu.Unlock()
	if known {
		return nil
	}
	nothing := func(l Link) (Result, failure, error) {
		l = l.Resolve(false)
		l.Streams, l.deadline = 1, s.probeWait
		r, failed, err := run(ctx, l, From{Host: s.source.Host, What: hosts.Nothing{}}, To{s.target.Host, hosts.Nothing{}}, Count{}, nil)
		failed.started = false // there is no work
		return r, failed, err
	}
	began := time.Now()
	_, err := s.run(ctx, nothing)
	if errors.As(err, new(*NoPath)) && time.Since(began) >= s.probeWait {
		s.mu.Lock()
		s.progress = before
		s.mu.Unlock()
		_, err = s.run(ctx, nothing)
	}
	if errors.As(err, new(*NoPath)) {
		return nil
	}
	return err
}

// run calls try with the path of the search, and with further ones while no end has started its work.
func (s *Search) run(ctx context.Context, try func(Link) (Result, failure, error)) (Result, error) {
	for {
		s.mu.Lock()
		l, found, noPath := s.link, s.found, s.noPath
		if !found && len(s.remaining) > 0 {
			l.deadline = searchDeadline
		}
		s.mu.Unlock()
		if noPath {
			return Result{}, s.noPathError()
		}
		res, failed, err := try(l)
		switch {
		case err == nil || res.Bytes > 0:
			s.accept(l)
			return res, err
		case ctx.Err() != nil || !failed.unconnected || s.given && !found:
			return res, err
		case found: // a retry may succeed
			return res, fmt.Errorf("%w: %w", tcp.ErrConnectionLost, err)
		}
		if err := s.reject(l, err); err != nil {
			return res, err
		}
		if failed.started { // only the caller knows what is left to do
			return res, fmt.Errorf("%w: %w", tcp.ErrConnectionLost, err)
		}
	}
}

// accept records that a path works, also after another transfer has rejected it.
func (s *Search) accept(l Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.found {
		l.deadline = linkDeadline
		s.link, s.found, s.noPath = l, true, false
	}
}

// reject records why a path failed, and takes the next one. It returns an error if this was the last one.
func (s *Search) reject(l Link, why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found || s.noPath || s.link.remaining != l.remaining {
		return nil // another transfer was first
	}
	before := len(s.rejected)
	s.rejected = append(slices.Clip(s.rejected), l.path()+": "+why.Error())
	if len(s.remaining) == 0 {
		s.noPath = true
		return s.noPathError()
	}
	if err := s.advance(); err != nil {
		s.noPath = true
		if errors.As(err, new(*unroutable)) {
			return s.noPathError()
		}
		return err
	}
	s.log(fmt.Sprintf("no data passes %s; trying %s", strings.Join(s.rejected[before:], "; "), s.link.description()))
	return nil
}

// NoPath is the error of a transfer after all paths failed.
type NoPath struct{ text string }

func (n *NoPath) Error() string { return n.text }

func (s *Search) noPathError() error {
	return fault.Failf("open ports for the other host and name them: {{port-range LOW-HIGH}}", "%w", &NoPath{"no data passes between the two hosts: " + strings.Join(s.rejected, "; ")})
}

// Result returns the result of the search; zero if no path was tried.
func (s *Search) Result() transport.PathSearch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given || !s.found && len(s.rejected) == 0 {
		return transport.PathSearch{}
	}
	l := s.link
	if s.noPath {
		l = s.first
	}
	first := Link{Settings: s.requested}
	listener, _ := first.chooseDialer(s.source, s.target)
	r := transport.PathSearch{Path: l.path(), Rejected: slices.Clone(s.rejected), Unroutable: s.unroutable, NoPath: s.noPath, OverSSH: l.Wire == transport.SSH,
		Listen: listener.Label(), Option: option.Name("dial", l.dial)}
	if r.OverSSH {
		r.Option = throughSSH(s.requested)
	}
	if s.noPath {
		r.Untried = s.untried(&l)
	}
	return r
}

// untried returns the alternatives that the user's options excluded.
func (s *Search) untried(l *Link) (all []string) {
	choices := candidates(s.requested, s.source, s.target)
	switch {
	case l.DataAddress != "": // the address belongs to one host, so no other can listen there
		return []string{"the same command" + without([]string{"data-address"})}
	case len(choices) == 1:
		other := map[string]string{"source": "target", "target": "source"}[l.dial]
		all = append(all, option.Name("dial", other))
	}
	if (s.source.Local() || s.target.Local()) && !slices.ContainsFunc(choices, func(w transport.Settings) bool { return w.Wire == transport.SSH }) {
		all = append(all, throughSSH(s.requested))
	}
	return all
}
