package connect

import (
	"net/netip"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/option"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

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
	if l.Wire == transport.SSH {
		return l.path() + without(l.requested.Ineffective(transport.OverSSH)) + ", " + l.why
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
