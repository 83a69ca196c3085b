package tcp

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// Offer describes a listener to open.
type Offer struct {
	Mode    Mode   `json:"mode"`
	Streams int    `json:"streams"` // connections, at least 1
	Address string `json:"address"` // IP address to listen on and to dial; a wildcard only if the user asks for one
	// PortLow and PortHigh bound the port; 0 lets the kernel choose.
	PortLow  int `json:"port_low,omitempty"`
	PortHigh int `json:"port_high,omitempty"`
	// Peer is the only address that may connect; "" allows any.
	Peer string `json:"peer,omitempty"`
	// Deadline is how long the listener waits for all connections.
	Deadline time.Duration `json:"deadline"`
	// Socket applies to the sockets of both ends.
	transport.Socket
}

// check returns an error for an offer that no listener can satisfy.
func (o *Offer) check() error {
	switch {
	case !o.Mode.known():
		return fault.Usagef("", "unknown wire %q", o.Mode)
	case o.Streams < 1 || o.Streams > MaxStreams:
		return fault.Usagef("", "%d connections requested: must be 1 to %d", o.Streams, MaxStreams)
	case o.PortLow < 0 || o.PortLow > o.PortHigh || o.PortHigh > 65535 || o.PortLow == 0 && o.PortHigh != 0:
		return fault.Usagef("", "invalid port range %d-%d", o.PortLow, o.PortHigh)
	}
	if o.Peer != "" {
		if _, err := netip.ParseAddr(o.Peer); err != nil {
			return fmt.Errorf("peer %q is not an IP address", o.Peer)
		}
	}
	return nil
}

// Mode is the protection of a stream on the network.
type Mode string

// The modes of authenticated TCP. docs/reference/protocol-data.md specifies them.
const (
	Signed Mode = "signed" // every frame carries a keyed tag; no secrecy
	TLS    Mode = "tls"    // TLS 1.3 with pinned keys on both ends
	Plain  Mode = "plain"  // only connections and control frames are authenticated; zero-copy
)

func (m Mode) known() bool { return m == Signed || m == TLS || m == Plain }

// Ticket authorizes a dialer for one listener. It holds secrets: send it only over the control
// channel, and never print or log it.
type Ticket struct {
	Mode    Mode   `json:"mode"`
	Address string `json:"address"` // host:port
	Session string `json:"session"` // hex, 16 bytes; public
	Secret  []byte `json:"secret"`  // 32 bytes
	Streams int    `json:"streams"`
	transport.Socket
	// Deadline is how long the dialer tries.
	Deadline time.Duration `json:"deadline"`
}

// Check returns an error for a ticket that no listener makes.
func (t *Ticket) Check() error {
	_, err := t.check()
	return err
}

// check is Check, and returns the session.
func (t *Ticket) check() (*session, error) {
	s := session{secret: t.Secret, mode: t.Mode, streams: t.Streams}
	id, err := hex.DecodeString(t.Session)
	if err != nil || len(id) != sessionSize || len(t.Secret) != secretSize ||
		!t.Mode.known() || t.Streams < 1 || t.Streams > MaxStreams || t.Window < 0 {
		return nil, errors.New("the ticket is malformed")
	}
	copy(s.id[:], id)
	return &s, nil
}

// String returns the ticket without its secrets.
func (t Ticket) String() string {
	return "ticket " + t.Session + " for " + t.Address + " (" + string(t.Mode) + ")"
}
