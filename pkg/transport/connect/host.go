package connect

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"zxfer/pkg/hosts"
)

// Host is the local host or a remote host. A remote host reconnects if its connection is lost.
type Host interface {
	// Local reports whether this is the local host.
	Local() bool
	// Label returns the host's name for messages.
	Label() string
	// Do calls f with the host's operations.
	Do(ctx context.Context, f func(hosts.Host) error) error
	// RTT returns the round-trip time to the host; 0 if local or unknown.
	RTT() time.Duration
	// Relay opens a listener on the local loopback. It forwards each connection through the
	// remote shell to a loopback address of the host, and closes when ctx ends. It calls
	// refused if the host refuses connections.
	Relay(ctx context.Context, address string, refused func(error)) (string, error)
}

// Side is a host with the facts that it reported.
type Side struct {
	Host
	Facts hosts.Facts
	// Addresses are the addresses of its interfaces; nil if remote.
	Addresses []netip.Addr
}

// NewSide returns a Side for Choose.
func NewSide(h Host, f hosts.Facts) Side {
	s := Side{Host: h, Facts: f}
	if !h.Local() {
		return s
	}
	all, _ := net.InterfaceAddrs() // none if unknown
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			s.Addresses = append(s.Addresses, p.Addr().Unmap())
		}
	}
	return s
}

// hasAddress reports whether address is known to belong to this host.
func (s *Side) hasAddress(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.Contains(s.Addresses, a.Unmap().WithZone(""))
}
