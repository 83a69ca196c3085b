package tcp

import (
	"crypto/sha256"
	"errors"
	"time"

	"zxfer/pkg/transport"
)

// Mode is the protection of a stream on the network.
type Mode string

// The modes of authenticated TCP. docs/reference/protocol-data.md specifies them.
const (
	Signed Mode = "signed" // every frame carries a keyed tag; no secrecy
	TLS    Mode = "tls"    // TLS 1.3 with pinned certificates on both ends
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
	// ServerPin is the SHA-256 of the listener's certificate (mode tls).
	ServerPin []byte `json:"server_pin,omitempty"`
	// ClientCert and ClientKey are the dialer's ephemeral identity in DER (mode tls).
	ClientCert []byte `json:"client_cert,omitempty"`
	ClientKey  []byte `json:"client_key,omitempty"`
}

// Check returns an error for a ticket that no listener makes.
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

// maxIdentity bounds a ticket's certificate and key in bytes. zxfer's have about 300.
const maxIdentity = 4 << 10

// String returns the ticket without its secrets.
func (t Ticket) String() string {
	return "ticket " + t.Session + " for " + t.Address + " (" + string(t.Mode) + ")"
}
