package job

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/wire"
)

// The wires a user may name, beside the modes of package wire.
const (
	wireAuto  = "auto"  // signed for raw streams of encrypted data, tls for the rest
	wireLocal = "local" // one host: no network, no listener
	wireSSH   = "ssh"   // through the remote shell's own connection
	// wireNetcat is by the plain tools of a host without zxfer.
	wireNetcat = "nc"
)

// linkDeadline is how long an offered listener waits for its connections,
// and the other end tries to make them.
const linkDeadline = 30 * time.Second

// linkChoice is how streams cross between the two sites.
type linkChoice struct {
	wire     string // as asked, or wireLocal
	why      string
	streams  int
	window   int
	listener *end // nil for wireLocal
	dialer   *end
	address  string // of the listener
	peer     string // the only address that may connect, "" = any
	portLow  int
	portHigh int
}

// fastLink is the rate in bytes per second that the number of streams is
// chosen for: 10 Gbit/s.
const fastLink = 10e9 / 8

// maxChosenStreams bounds the streams chosen without being asked: beyond it
// the gain is small and every stream costs a socket's buffers.
const maxChosenStreams = 8

// chooseLink decides which side listens, at which address, and how many
// connections are made.
//
// The host that runs zxfer dials, as that direction is known to work for the
// remote shell; between two other hosts the source does.
func chooseLink(req Send, source, target *end, sf, tf site.Facts, rtt time.Duration) (linkChoice, error) {
	c := linkChoice{wire: req.Wire, window: req.Window, portLow: req.PortLow, portHigh: req.PortHigh}
	if source == target {
		c.wire, c.why = wireLocal, "source and target are on one host"
		return c, nil
	}
	if c.wire == "" {
		c.wire = wireAuto
	}
	listenerFacts, dialerFacts := tf, sf
	c.listener, c.dialer = target, source
	switch {
	case req.Dial == "target", req.Dial != "source" && target.host == "":
		c.listener, c.dialer = source, target
		listenerFacts, dialerFacts = sf, tf
	}
	if c.wire == wireNetcat {
		if err := c.chooseNetcat(source, target); err != nil {
			return c, err
		}
		dialerFacts = sf
		if c.dialer == target {
			dialerFacts = tf
		}
		return c, c.chooseAddress(req.DataAddress, site.Facts{}, dialerFacts)
	}
	c.streams = req.Streams
	if c.streams == 0 {
		c.streams = chooseStreams(c.window, rtt, listenerFacts, dialerFacts)
	}
	switch c.wire {
	case wireAuto:
		c.why = "signed for raw streams of encrypted data, tls for the rest"
	case string(wire.Plain):
		c.why = "--trusted-link: bytes are neither secret nor protected against changes on the way"
	case wireSSH:
		c.why = "asked for: slower, needs no port"
		if c.dialer.host != "" {
			return c, fault.Usagef("run zxfer on one of the two hosts", "--wire ssh needs one end on this host")
		}
		c.address = "127.0.0.1"
		return c, nil
	default:
		c.why = "asked for"
	}
	return c, c.chooseAddress(req.DataAddress, listenerFacts, dialerFacts)
}

// chooseAddress decides where the listener listens: at the address of the
// remote shell's connection, unless one is asked for.
func (c *linkChoice) chooseAddress(asked string, listenerFacts, dialerFacts site.Facts) error {
	switch {
	case asked != "":
		c.address = asked
	case c.listener.host != "":
		c.address = listenerFacts.SSHLocal
		if c.dialer.host == "" {
			c.peer = listenerFacts.SSHPeer
		}
	default:
		c.address = dialerFacts.SSHPeer
		c.peer = dialerFacts.SSHLocal
	}
	if c.address == "" {
		return fault.Refusef("name it: --data-address ADDRESS",
			"%s: the address to listen on is unknown (the remote shell set no SSH_CONNECTION)", c.listener.label())
	}
	addr, err := netip.ParseAddr(c.address)
	if err != nil {
		return fault.Usagef("give an IP address of the host that listens", "--data-address %q is not an IP address", c.address)
	}
	// Another host said so: a connection to that address would be one to
	// whatever listens on the host that dials.
	if asked == "" && c.listener.host != "" && addr.Unmap().IsLoopback() && listenerFacts.Boot != dialerFacts.Boot {
		return fault.Refusef("name an address that leads there: --data-address ADDRESS; or go through the remote shell: --wire ssh",
			"%s: it was reached at %s, which leads to no other host", c.listener.label(), addr)
	}
	c.address = addr.String()
	return nil
}

// A round trip up to lanRTT needs no more than one connection where windows may
// grow to usualWindow, Linux' default for sending: that carries 10 Gbit/s over
// most of it. Besides, so short a time is mostly what the processes at both
// ends of the remote shell take, not the network.
const (
	lanRTT      = 5 * time.Millisecond
	usualWindow = 4 << 20 // bytes
)

// chooseStreams makes streams × window cover twice the bandwidth-delay
// product of a 10 Gbit/s link, within what the kernels let a window grow to.
func chooseStreams(window int, rtt time.Duration, a, b site.Facts) int {
	w := int64(window)
	for _, limit := range []int64{a.TCPReadMax, b.TCPReadMax, a.TCPWriteMax, b.TCPWriteMax} {
		if window == 0 && limit > 0 && (w == 0 || limit < w) {
			w = limit
		}
	}
	if w <= 0 || rtt <= 0 || rtt <= lanRTT && w >= usualWindow {
		return 1
	}
	need := 2 * fastLink * rtt.Seconds()
	return min(maxChosenStreams, max(1, int(need/float64(w)+0.999)))
}

// mode is how a dataset's streams cross.
func (c linkChoice) mode(encrypted bool) wire.Mode {
	switch c.wire {
	case wireAuto:
		if encrypted {
			return wire.Signed
		}
		return wire.TLS
	case wireNetcat:
		return wire.Plain // of which only the listener's options count
	case wireSSH:
		return wire.Signed // ssh hides and protects the bytes; the tag binds them to this job
	}
	return wire.Mode(c.wire)
}

// name is the wire as results show it.
func (c linkChoice) name(encrypted bool) string {
	if c.wire == wireLocal || c.wire == wireSSH || c.wire == wireNetcat {
		return c.wire
	}
	return string(c.mode(encrypted))
}

// tlsConnection is how many bytes a connection of TLS is planned to carry.
// AES-GCM under one key is good for 2^24.5 records of 16 KiB, some 390 GB, and
// crypto/tls never changes the key of a connection.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const tlsConnection = 256 << 30

// connections is how many carry a stream of bytes, 0 where that is unknown.
func (c linkChoice) connections(mode wire.Mode, bytes uint64) int {
	if mode != wire.TLS {
		return c.streams
	}
	return max(c.streams, int(min(wire.MaxStreams, (bytes+tlsConnection-1)/tlsConnection)))
}

// offer is for a stream of about that many bytes.
func (c linkChoice) offer(encrypted bool, bytes uint64) wire.Offer {
	mode := c.mode(encrypted)
	return wire.Offer{
		Mode: mode, Streams: c.connections(mode, bytes), Address: c.address, Peer: c.peer,
		PortLow: c.portLow, PortHigh: c.portHigh, Deadline: linkDeadline, Window: c.window,
	}
}

// report says how the plan's streams will cross.
func (c linkChoice) report(p *plan.Plan) WireReport {
	if c.wire == wireLocal {
		return c.reportMode(wireLocal)
	}
	mode := c.wire
	modes := map[string]bool{}
	for _, d := range p.Datasets {
		if len(d.Steps) > 0 {
			modes[c.name(d.Encrypted)] = true
		}
	}
	switch {
	case len(modes) == 1:
		for m := range modes {
			mode = m
		}
	case len(modes) > 1:
		mode = "signed, tls"
	}
	return c.reportMode(mode)
}

// reportMode says how bytes will cross, given what the choice of wires came to.
func (c linkChoice) reportMode(mode string) WireReport {
	r := WireReport{Mode: mode, Why: c.why, Streams: c.streams}
	if c.wire == wireLocal {
		return r
	}
	if c.wire == wireAuto {
		switch r.Mode {
		case string(wire.Signed):
			r.Why = "raw streams of encrypted data: contents are secret already"
		case string(wire.TLS):
			r.Why = "the data is not encrypted by itself"
		}
	}
	r.Dial = c.dialer.role
	r.Address = c.address
	if strings.Contains(r.Address, ":") {
		r.Address = "[" + r.Address + "]"
	}
	if c.portLow != 0 {
		r.Address += fmt.Sprintf(":%d-%d", c.portLow, c.portHigh)
	}
	return r
}
