package tcp

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// Mode is how a stream crosses the network.
type Mode string

// The modes of authenticated TCP. See docs/protocol.md for what each promises.
const (
	Signed Mode = "signed" // every frame carries a keyed tag, no secrecy
	TLS    Mode = "tls"    // TLS 1.3, certificates pinned both ways
	Plain  Mode = "plain"  // only the connections and the end are authenticated; bytes move zero-copy
)

func (m Mode) known() bool { return m == Signed || m == TLS || m == Plain }

// Offer asks for a listener.
type Offer struct {
	Mode    Mode   `json:"mode"`
	Streams int    `json:"streams"` // connections, at least 1
	Address string `json:"address"` // IP to listen on and to be reached at; never a wildcard unless the user asks
	// PortLow and PortHigh bound the port; 0 lets the kernel choose.
	PortLow  int `json:"port_low,omitempty"`
	PortHigh int `json:"port_high,omitempty"`
	// Peer, where set, is the only address that may connect; others are dropped at once.
	Peer string `json:"peer,omitempty"`
	// Deadline is how long the listener waits for all connections.
	Deadline time.Duration `json:"deadline"`
	// Socket is what both ends ask of their sockets.
	transport.Socket
}

// check refuses offers that cannot be kept.
func (o *Offer) check() error {
	switch {
	case !o.Mode.known():
		return fault.Usagef("", "unknown wire %q", o.Mode)
	case o.Streams < 1 || o.Streams > MaxStreams:
		return fault.Usagef("", "%d connections asked for, 1 to %d are possible", o.Streams, MaxStreams)
	case o.PortLow < 0 || o.PortLow > o.PortHigh || o.PortHigh > 65535 || o.PortLow == 0 && o.PortHigh != 0:
		return fault.Usagef("", "port range %d-%d is none", o.PortLow, o.PortHigh)
	}
	if o.Peer != "" {
		if _, err := netip.ParseAddr(o.Peer); err != nil {
			return fmt.Errorf("peer %q is not an IP address", o.Peer)
		}
	}
	return nil
}

// Ticket is what the dialling end needs. It holds secrets: it travels only
// over the control channel and must not be printed or logged.
type Ticket struct {
	Mode    Mode   `json:"mode"`
	Address string `json:"address"` // host:port
	Session string `json:"session"` // hex, 16 bytes; public
	Secret  []byte `json:"secret"`  // 32 bytes
	Streams int    `json:"streams"`
	transport.Socket
	// Deadline is how long the dialling end tries.
	Deadline time.Duration `json:"deadline"`
	// ServerPin is the SHA-256 of the listener's certificate (mode tls).
	ServerPin []byte `json:"server_pin,omitempty"`
	// ClientCert and ClientKey (DER) are the dialling end's ephemeral identity (mode tls).
	ClientCert []byte `json:"client_cert,omitempty"`
	ClientKey  []byte `json:"client_key,omitempty"`
}

// Check refuses tickets that no listener makes.
func (t *Ticket) Check() error {
	_, err := t.session()
	switch {
	case err != nil:
		return err
	case !t.Mode.known(), t.Streams < 1, t.Streams > MaxStreams, t.Window < 0,
		t.Mode == TLS && len(t.ServerPin) != sha256.Size, len(t.ClientCert) > maxIdentity, len(t.ClientKey) > maxIdentity:
		return errors.New("the ticket is malformed")
	}
	return nil
}

// maxIdentity bounds a ticket's certificate and key, in bytes: zxfer's have some 300.
const maxIdentity = 4 << 10

// String hides the secrets of a ticket from logs.
func (t Ticket) String() string {
	return "ticket " + t.Session + " for " + t.Address + " (" + string(t.Mode) + ")"
}
