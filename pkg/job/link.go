package job

import (
	"net/netip"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
)

// wireLocal is within one host: no network, no listener.
const wireLocal = "local"

// linkDeadline is how long an offered listener waits for its connections,
// and the other end tries to make them.
const linkDeadline = 30 * time.Second

// linkChoice is how streams cross between the two sites.
type linkChoice struct {
	// Way is what was asked for, with what was chosen where nothing was: Wire,
	// or wireLocal, and Streams.
	way.Way
	why      string
	listener *end // nil for wireLocal
	dialer   *end
	address  string // of the listener
	peer     string // the only address that may connect, "" = any
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
func chooseLink(w way.Way, source, target *end, sf, tf site.Facts, rtt time.Duration) (linkChoice, error) {
	c := linkChoice{Way: w}
	if source == target {
		c.Wire, c.why = wireLocal, "source and target are on one host"
		return c, nil
	}
	if c.Wire == "" {
		c.Wire = way.Auto
	}
	listenerFacts, dialerFacts := tf, sf
	c.listener, c.dialer = target, source
	switch {
	case w.Dial == "target", w.Dial != "source" && target.host == "":
		c.listener, c.dialer = source, target
		listenerFacts, dialerFacts = sf, tf
	}
	if c.Wire == way.NC {
		if err := c.chooseNetcat(source, target); err != nil {
			return c, err
		}
		dialerFacts = sf
		if c.dialer == target {
			dialerFacts = tf
		}
		return c, c.chooseAddress(site.Facts{}, dialerFacts)
	}
	if c.Streams == 0 {
		c.Streams = chooseStreams(int(c.Window), rtt, listenerFacts, dialerFacts)
	}
	switch c.Wire {
	case way.Auto:
		c.why = "signed for raw streams of encrypted data, tls for the rest"
	case string(wire.Plain):
		c.why = "--trusted-link: bytes are neither secret nor protected against changes on the way"
	case way.SSH:
		c.why = "asked for: slower, needs no port"
		if c.dialer.host != "" {
			return c, fault.Usagef("run zxfer on one of the two hosts", "--wire ssh needs one end on this host")
		}
		c.address = "127.0.0.1"
		return c, nil
	default:
		c.why = "asked for"
	}
	return c, c.chooseAddress(listenerFacts, dialerFacts)
}

// chooseAddress decides where the listener listens: at the address of the
// remote shell's connection, unless one is asked for.
func (c *linkChoice) chooseAddress(listenerFacts, dialerFacts site.Facts) error {
	switch {
	case c.DataAddress != "":
		c.address = c.DataAddress
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
	if c.DataAddress == "" && c.listener.host != "" && addr.Unmap().IsLoopback() && listenerFacts.Boot != dialerFacts.Boot {
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
	switch c.Wire {
	case way.Auto:
		if encrypted {
			return wire.Signed
		}
		return wire.TLS
	case way.NC:
		return wire.Plain // of which only the listener's options count
	case way.SSH:
		return wire.Signed // ssh hides and protects the bytes; the tag binds them to this job
	}
	return wire.Mode(c.Wire)
}

// name is the wire as results show it.
func (c linkChoice) name(encrypted bool) string {
	if c.Wire == wireLocal || c.Wire == way.SSH || c.Wire == way.NC {
		return c.Wire
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
		return c.Streams
	}
	return max(c.Streams, int(min(wire.MaxStreams, (bytes+tlsConnection-1)/tlsConnection)))
}

// offer is for a stream of about that many bytes.
func (c linkChoice) offer(encrypted bool, bytes uint64) wire.Offer {
	mode := c.mode(encrypted)
	return wire.Offer{
		Mode: mode, Streams: c.connections(mode, bytes), Address: c.address, Peer: c.peer,
		PortLow: c.Ports.Low, PortHigh: c.Ports.High, Deadline: linkDeadline, Window: int(c.Window),
	}
}

// report says how the plan's streams will cross.
func (c linkChoice) report(p *plan.Plan) WireReport {
	if c.Wire == wireLocal {
		return c.reportMode(wireLocal)
	}
	mode := c.Wire
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
	r := WireReport{Mode: mode, Why: c.why, Streams: c.Streams}
	if c.Wire == wireLocal {
		return r
	}
	if c.Wire == way.Auto {
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
	if c.Ports.Low != 0 {
		r.Address += ":" + c.Ports.String()
	}
	return r
}
