package connect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/retry"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Choose returns the link for the first routable path. It chooses the listener, its address and
// the number of connections from its arguments alone. Open tests whether data passes.
func Choose(w transport.Settings, source, target Side) (Link, error) {
	l := Link{requested: w, source: source, target: target, remaining: candidates(w, source, target),
		deadline: linkDeadline, probeDeadline: probeTimeout}
	return l.next()
}

// next returns the link for the first remaining path that is routable.
func (l Link) next() (Link, error) {
	source, target := l.source, l.target
	for {
		l = Link{Settings: l.remaining[0], requested: l.requested, source: source, target: target, rejected: l.rejected, remaining: l.remaining[1:],
			tried: l.tried, unroutable: l.unroutable, deadline: l.deadline, probeDeadline: l.probeDeadline,
			used: new(atomic.Bool), expected: l.expected, ready: new(atomic.Pointer[prepared])}
		if err := l.chooseWire(); err != nil {
			return l, err
		}
		err := l.carrier.choose(&l, source, target)
		if !errors.As(err, new(*unroutable)) {
			return l, err
		}
		if l.reject(err); len(l.remaining) == 0 {
			return l, err
		}
	}
}

// chooseWire sets the wire and its carrier.
func (l *Link) chooseWire() error {
	switch noAgent := l.agentless(); {
	case noAgent != nil && l.Wire != transport.NC:
		if l.Wire != "" && l.Wire != transport.Auto && l.Wire != transport.SSH {
			return fault.Refusef("omit {{wire}}", "%s requires zxfer on both hosts, and it does not run on %s: %s",
				option.Name("wire", l.Wire), noAgent.Label(), noAgent.Facts.NoAgent)
		}
		l.Wire, l.carrier = transport.SSH, agentlessCarrier{limits: &transfer.Limits{}}
		return nil
	case l.source.Host == l.target.Host:
		l.Wire = Local
	case l.Wire == "":
		l.Wire = transport.Auto
	}
	l.carrier = carrierOf(l.Wire)
	return l.CheckHosts(l.source.Local(), l.target.Local())
}

// Resolve returns the link with a definite Wire. encrypted means a raw stream of encrypted
// data.
func (l Link) Resolve(encrypted bool) Link {
	if l.Wire == transport.Auto {
		l.Wire = string(tcp.TLS)
		if encrypted {
			l.Wire = string(tcp.Signed)
		}
	}
	return l
}

// agentless returns a side on which zxfer does not run, or nil.
func (l *Link) agentless() *Side {
	for _, s := range []*Side{&l.source, &l.target} {
		if s.Facts.NoAgent != "" {
			return s
		}
	}
	return nil
}

// chooseDialer sets the side that dials: the requested one, or else the local host, or the
// source.
func (l *Link) chooseDialer(source, target Side) (listener, dialer Side) {
	listener, dialer, l.dial = target, source, "source"
	if l.Dial == "target" || l.Dial != "source" && target.Local() {
		listener, dialer, l.dial = source, target, "target"
	}
	l.listener, l.dialer = listener.Host, dialer.Host
	return listener, dialer
}

// unroutable marks an address that leads nowhere or to another host.
type unroutable struct{ error }

func (a *unroutable) Unwrap() error { return a.error }

// chooseAddress sets the listener's address: the requested one, or that of the ssh connection.
func (l *Link) chooseAddress(listener, dialer Side) error {
	switch {
	case l.DataAddress != "":
		l.address = l.DataAddress
	case !listener.Local():
		l.address = listener.Facts.SSHLocal
		// With a jump host or NAT, data does not come from this address.
		if dialer.Local() && dialer.hasAddress(listener.Facts.SSHPeer) {
			l.peer = listener.Facts.SSHPeer
		}
	default:
		l.address = dialer.Facts.SSHPeer
		l.peer = dialer.Facts.SSHLocal
	}
	if l.address == "" {
		return &unroutable{fault.Refusef("name the address: {{data-address ADDRESS}}",
			"%s: the address to listen on is unknown (the remote shell set no SSH_CONNECTION)", listener.Label())}
	}
	addr, err := netip.ParseAddr(l.address)
	if err != nil {
		return fault.Usagef("name an IP address of the listening host", "{{data-address}}: %q is not an IP address", l.address)
	}
	l.address = addr.String()
	switch {
	case l.DataAddress != "":
	// A remote host reported this address. The dialer would connect to itself.
	case addr.Unmap().IsLoopback() && listener.Facts.Boot != dialer.Facts.Boot:
		return &unroutable{fault.Refusef("name an address that the other host can reach: {{data-address ADDRESS}}\nor send through the remote shell: {{wire ssh}}",
			"%s: its ssh address %s cannot be reached from other hosts", listener.Label(), addr)}
	case listener.Local() && len(listener.Addresses) > 0 && !listener.hasAddress(l.address):
		return &unroutable{fault.Refusef("name an address of this host that it can reach: {{data-address ADDRESS}}",
			"%s was reached through %s (an ssh jump host or NAT): the address of this host from there is unknown", dialer.Label(), addr)}
	}
	return nil
}

// candidates returns the paths to try between two hosts, in this order. Explicit settings win:
// if they name a direction, an address, ssh or nc, there is only one path. If they name another
// wire, the ssh connection is no path.
//
// First, the local host dials the remote one, because ssh has shown that this direction is
// open. Between two remote hosts, the source dials. Next is the reverse direction. If one host
// is local, the ssh connection comes last.
func candidates(w transport.Settings, source, target Side) []transport.Settings {
	all := []transport.Settings{w}
	free := func(word string) bool { return word == "" || word == transport.Auto }
	if source.Host == target.Host || w.Wire == transport.NC || w.Wire == transport.SSH || !free(w.Dial) || w.DataAddress != "" {
		return all
	}
	reversed := w
	if reversed.Dial = "target"; target.Local() {
		reversed.Dial = "source"
	}
	all = append(all, reversed)
	if free(w.Wire) && (source.Local() || target.Local()) {
		shell := w
		shell.Wire, shell.Dial, shell.Ports, shell.Socket = transport.SSH, "", transport.Ports{}, transport.Socket{}
		all = append(all, shell)
	}
	return all
}

// Open probes the link with one connection, which carries no data, or with those that Expecting asked
// for. If the path is blocked, Open logs that and tries the next one. It does not probe within one host,
// with nc, and with ssh if that was requested. An error concerns a host, not a path. To continue, call
// Open on the link returned with the error.
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
		if time.Since(began) >= l.probeDeadline && !l.tried {
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
	if l.Wire != transport.SSH { // ssh has to log in first
		l.deadline = l.probeDeadline
	}
	kept := l
	l = l.Resolve(false)
	l.Streams = 1
	m := &session{link: l, from: From{Host: l.source.Host, What: hosts.Nothing{}}, to: To{l.target.Host, hosts.Nothing{}},
		monitor: &monitor{limit: func(limit string) string { return limit }}}
	twice := retry.Loop{
		Try: func(ctx context.Context, _ int) error {
			err := kept.prepare(ctx)
			if one := kept.expected != nil && kept.connections(kept.expected.bytes) == 1; err == nil || one && !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			return l.carrier.run(ctx, m) // one of many connections may have failed by chance
		},
		Retryable: func(err, _ error) bool {
			return !l.blocksPath(err) && !errors.Is(err, hosts.ErrLost) && fault.ClassOf(err) != fault.Refused
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
	for _, of := range []error{tcp.ErrDial, tcp.ErrNoPeer, tcp.ErrConnectionLost, tcp.ErrTampered, context.DeadlineExceeded} {
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
