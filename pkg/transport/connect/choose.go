package connect

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// Choose returns the link for the first routable path. It chooses the listener, its address and
// the number of connections from its arguments alone. Open tests whether data passes.
func Choose(w transport.Settings, source, target Side) (Link, error) {
	l := Link{requested: w, source: source, target: target, remaining: candidates(w, source, target), deadline: linkDeadline}
	return l.next()
}

// next returns the link for the first remaining path that is routable.
func (l Link) next() (Link, error) {
	source, target := l.source, l.target
	for {
		l = Link{Settings: l.remaining[0], requested: l.requested, source: source, target: target, rejected: l.rejected, remaining: l.remaining[1:],
			tried: l.tried, unroutable: l.unroutable, deadline: l.deadline, used: new(atomic.Bool)}
		switch {
		case source.Host == target.Host:
			l.Wire = Local
		case l.Wire == "":
			l.Wire = transport.Auto
		}
		if err := l.CheckHosts(source.Local(), target.Local()); err != nil {
			return l, err
		}
		l.carrier = carrierOf(l.Wire)
		err := l.carrier.choose(&l, source, target)
		if !errors.As(err, new(*unroutable)) {
			return l, err
		}
		if l.reject(err); len(l.remaining) == 0 {
			return l, err
		}
	}
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
		return &unroutable{fault.Refusef("name it: {{data-address ADDRESS}}",
			"%s: the address to listen on is unknown (the remote shell set no SSH_CONNECTION)", listener.Label())}
	}
	addr, err := netip.ParseAddr(l.address)
	if err != nil {
		return fault.Usagef("give an IP address of the host that listens", "{{data-address}}: %q is not an IP address", l.address)
	}
	l.address = addr.String()
	switch {
	case l.DataAddress != "":
	// A remote host reported this address. The dialer would connect to itself.
	case addr.Unmap().IsLoopback() && listener.Facts.Boot != dialer.Facts.Boot:
		return &unroutable{fault.Refusef("name an address that leads there: {{data-address ADDRESS}}; or go through the remote shell: {{wire ssh}}",
			"%s: it was reached at %s, which leads to no other host", listener.Label(), addr)}
	case listener.Local() && len(listener.Addresses) > 0 && !listener.hasAddress(l.address):
		return &unroutable{fault.Refusef("name an address of this host that leads there: {{data-address ADDRESS}}",
			"%s was reached by way of %s, a jump host of ssh or NAT: which address leads from there to this host is unknown", dialer.Label(), addr)}
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
