package connect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/retry"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Open probes the link with one connection, which carries no data. If the path is blocked, Open
// logs that and tries the next one. It does not probe within one host, with nc, and with ssh if
// that was requested. An error concerns a host, not a path. To continue, call Open on the link
// returned with the error.
func (l Link) Open(ctx context.Context, log func(string)) (Link, error) {
	for {
		if l.Wire == Local || l.Wire == transport.NC || l.Wire == transport.SSH && len(l.rejected) == 0 {
			return l, nil
		}
		began := time.Now()
		err := l.probe(ctx)
		switch {
		case ctx.Err() != nil:
			return l, context.Cause(ctx)
		case hosts.UnsupportedByPeer(err): // an earlier zxfer cannot probe
			log(l.remoteHosts() + " has an earlier zxfer: whether data passes was not tried")
			return l, nil
		case err == nil:
			if i := l.rejectedIndex(); i >= 0 { // the path works now, so forget that it failed
				l.rejected = l.rejected[:i]
			}
			l.used.Store(true)
			l.tried = true
			return l, nil
		case !l.blocksPath(err):
			return l, err
		}
		if time.Since(began) >= probeTimeout && !l.tried {
			l.retryLater()
		}
		l.tried = true
		closedPaths := []string{l.reject(err)}
		if len(l.remaining) == 0 {
			return l.noPathLink()
		}
		next, err := l.next()
		switch {
		case errors.As(err, new(*unroutable)):
			return next.noPathLink()
		case err != nil:
			return l, err
		}
		closedPaths = append(closedPaths, next.rejected[len(l.rejected):]...)
		log(fmt.Sprintf("no data passes %s; trying %s", strings.Join(closedPaths, "; "), next.description()))
		l = next
	}
}

// probe makes one connection. After an error that says nothing about the path it tries once
// more: another transfer may have used the ports.
func (l Link) probe(ctx context.Context) error {
	l = l.Resolve(false)
	l.Streams = 1
	if l.Wire != transport.SSH { // ssh has to log in first
		l.deadline = probeTimeout
	}
	m := &session{link: l, from: From{l.source.Host, hosts.Nothing{}}, to: To{l.target.Host, hosts.Nothing{}},
		monitor: &monitor{limit: func(limit string) string { return limit }}}
	twice := retry.Loop{
		Try: func(ctx context.Context, _ int) error { return l.carrier.run(ctx, m) },
		Curable: func(err, _ error) bool {
			return !l.blocksPath(err) && !errors.Is(err, hosts.ErrLost) && !hosts.UnsupportedByPeer(err) && fault.ClassOf(err) != fault.Refused
		},
		Pause: retry.Once(probePause),
	}
	return twice.Run(ctx)
}

// blocksPath reports whether an error means that the path is blocked. Other errors, such as
// ports in use, concern a host, so another path would not help.
func (l *Link) blocksPath(err error) bool {
	if fault.ClassOf(err) == fault.Refused {
		return l.Wire == transport.SSH || errors.Is(err, hosts.ErrForbidden)
	}
	for _, of := range []error{tcp.ErrDial, tcp.ErrNobody, tcp.ErrCut, tcp.ErrTampered, context.DeadlineExceeded} {
		if errors.Is(err, of) && !errors.Is(err, hosts.ErrLost) {
			return true
		}
	}
	return false
}

// retryLater schedules a second attempt of this path before ssh: a timeout may be temporary.
func (l *Link) retryLater() {
	last := len(l.remaining)
	if last > 0 && l.remaining[last-1].Wire == transport.SSH {
		last--
	}
	l.remaining = slices.Insert(slices.Clone(l.remaining), last, l.Settings)
}

// reject records why a path failed, once for each path.
func (l *Link) reject(err error) string {
	why := l.path() + ": " + err.Error()
	if len(l.rejected) == 0 {
		l.unroutable = errors.As(err, new(*unroutable))
	}
	if l.rejectedIndex() < 0 {
		l.rejected = append(slices.Clip(l.rejected), why)
	}
	return why
}

// noPathLink returns the link that Choose chose first, marked as having no working path.
func (l Link) noPathLink() (Link, error) {
	first, err := Choose(l.requested, l.source, l.target)
	first.rejected, first.unroutable, first.tried, first.noPath = l.rejected, l.unroutable, true, true
	return first, err
}

// Search returns the result of the search for a path; zero if nothing was probed.
func (l Link) Search() transport.PathSearch {
	if !l.tried {
		return transport.PathSearch{}
	}
	first := Link{Settings: l.requested}
	listener, _ := first.chooseDialer(l.source, l.target)
	s := transport.PathSearch{Path: l.path(), Rejected: l.rejected, Unroutable: l.unroutable, NoPath: l.noPath, OverSSH: l.Wire == transport.SSH,
		Listen: listener.Label(), Option: option.Name("dial", l.dial)}
	if s.OverSSH {
		s.Option = throughSSH(l.requested)
	}
	if !l.noPath {
		return s
	}
	choices := candidates(l.requested, l.source, l.target)
	switch {
	case l.DataAddress != "": // the address belongs to one host, so no other can listen there
		s.Untried = []string{"the same command" + without([]string{"data-address"})}
		return s
	case len(choices) == 1:
		other := map[string]string{"source": "target", "target": "source"}[l.dial]
		s.Untried = append(s.Untried, option.Name("dial", other))
	}
	if (l.source.Local() || l.target.Local()) && !slices.ContainsFunc(choices, func(w transport.Settings) bool { return w.Wire == transport.SSH }) {
		s.Untried = append(s.Untried, throughSSH(l.requested))
	}
	return s
}

// throughSSH returns the options that select ssh directly.
func throughSSH(w transport.Settings) string {
	idle := w.Ineffective(transport.OverSSH)
	if w.TrustedLink {
		idle = append(idle, "trusted-link")
	}
	return option.Name("wire", transport.SSH) + without(idle)
}

// description names the link for progress messages.
func (l *Link) description() string {
	switch {
	case l.Wire == transport.SSH:
		return l.path() + without(l.requested.Ineffective(transport.OverSSH)) + ", " + l.why
	case l.rejectedIndex() >= 0:
		return l.path() + " once more"
	}
	return l.path()
}

// without returns the text that lists omitted options.
func without(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	for i, id := range ids {
		ids[i] = option.Name(id, "")
	}
	return " without " + strings.Join(ids, " and ")
}

// remoteHosts names the remote hosts.
func (l *Link) remoteHosts() string {
	var names []string
	for _, s := range []Side{l.source, l.target} {
		if !s.Local() {
			names = append(names, s.Label())
		}
	}
	return strings.Join(names, " or ")
}

// path names the direction of a link.
func (l *Link) path() string {
	if l.Wire == transport.SSH {
		return "through ssh"
	}
	return "from " + l.dialer.Label() + " to " + l.listener.Label()
}

// rejectedIndex returns the index of this path in rejected, or -1.
func (l *Link) rejectedIndex() int {
	return slices.IndexFunc(l.rejected, func(s string) bool { return strings.HasPrefix(s, l.path()+": ") })
}
