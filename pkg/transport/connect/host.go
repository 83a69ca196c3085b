package connect

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"zxfer/pkg/hosts"
)

// Host is where an end is: this host, or another, which is reached anew where
// its connection was lost.
type Host interface {
	// Local tells this host.
	Local() bool
	// Label is the host as messages name it.
	Label() string
	// Do calls f with the host's Site.
	Do(ctx context.Context, f func(hosts.Host) error) error
	// RTT is the round trip to the host, 0 for this one or while unknown.
	RTT() time.Duration
	// Relay opens a listener on this host's loopback that forwards every
	// connection to a loopback address of the host, through the remote shell.
	// It closes when ctx ends. refused is told, where the host takes none.
	Relay(ctx context.Context, address string, refused func(error)) (string, error)
}

// Side is a host with what it says about itself.
type Side struct {
	Host
	Facts hosts.Facts
	// Addresses are those of its interfaces, where it is this host.
	Addresses []netip.Addr
}

// NewSide is a host as a way to or from it is chosen.
func NewSide(h Host, f hosts.Facts) Side {
	s := Side{Host: h, Facts: f}
	if !h.Local() {
		return s
	}
	all, _ := net.InterfaceAddrs() // unknown is none
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			s.Addresses = append(s.Addresses, p.Addr().Unmap())
		}
	}
	return s
}

// hasAddress tells whether an address is one of this host's, as far as they are known.
func (s *Side) hasAddress(address string) bool {
	a, err := netip.ParseAddr(address)
	return err == nil && slices.Contains(s.Addresses, a.Unmap().WithZone(""))
}
