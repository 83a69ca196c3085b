package connect

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// candidates are those that bytes may take between two hosts, each where those before it
// do not pass. What was asked for is obeyed: where it names the direction, an
// address or the wire there is no other.
//
// First of all this host connects to the other, as that direction is known to be
// open for the remote shell; between two other hosts the source does. Next is the
// other direction, and then, from or to this host, the remote shell's own connection.
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

// Choose decides how bytes are to cross between two hosts: which one listens, at
// which address, and how many connections are made. It looks at nothing but what it
// is given: whether that passes, Open finds out.
func Choose(w transport.Settings, source, target Side) (Link, error) {
	l := Link{requested: w, source: source, target: target, remaining: candidates(w, source, target), deadline: linkDeadline}
	return l.next()
}

// next is the link of the first of the ways left that leads anywhere.
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

// chooseDialer says who dials: the side that was asked for, or else this host.
func (l *Link) chooseDialer(source, target Side) (listener, dialer Side) {
	listener, dialer, l.dial = target, source, "source"
	if l.Dial == "target" || l.Dial != "source" && target.Local() {
		listener, dialer, l.dial = source, target, "target"
	}
	l.listener, l.dialer = listener.Host, dialer.Host
	return listener, dialer
}

// unroutable is the error of an address that leads to nobody or somebody else.
type unroutable struct{ error }

func (a *unroutable) Unwrap() error { return a.error }

// chooseAddress decides where the listener listens: at the address of the
// remote shell's connection, unless one is asked for.
func (l *Link) chooseAddress(listener, dialer Side) error {
	switch {
	case l.DataAddress != "":
		l.address = l.DataAddress
	case !listener.Local():
		l.address = listener.Facts.SSHLocal
		// Behind a jump host of ssh, or NAT, this is not where data will come from.
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
	// Another host said so: a connection to that address would be one to
	// whatever listens on the host that dials.
	case addr.Unmap().IsLoopback() && listener.Facts.Boot != dialer.Facts.Boot:
		return &unroutable{fault.Refusef("name an address that leads there: {{data-address ADDRESS}}; or go through the remote shell: {{wire ssh}}",
			"%s: it was reached at %s, which leads to no other host", listener.Label(), addr)}
	case listener.Local() && len(listener.Addresses) > 0 && !listener.hasAddress(l.address):
		return &unroutable{fault.Refusef("name an address of this host that leads there: {{data-address ADDRESS}}",
			"%s was reached by way of %s, a jump host of ssh or NAT: which address leads from there to this host is unknown", dialer.Label(), addr)}
	}
	return nil
}
