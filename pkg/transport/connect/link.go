package connect

import (
	"cmp"
	"context"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Local is the wire of a link within one host.
const Local = "local"

// linkDeadline is how long an offered listener waits for its connections,
// and the other end tries to make them; tryDeadline is that of the one by which
// a way is tried, and tryPause comes before another try of what is no word on it.
const (
	linkDeadline = 30 * time.Second
	tryDeadline  = 3 * time.Second
	tryPause     = time.Second
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

// Link is how bytes cross between two hosts, in both directions.
type Link struct {
	// Way is what was asked for, with what was chosen where nothing was: Wire,
	// or Local, and Streams.
	transport.Settings
	why     string
	carrier carrier
	// source, target and asked are what it was chosen for, before are the ways that do not
	// pass, and after those that are left to try.
	source, target Side
	requested      transport.Settings
	rejected       []string
	remaining      []transport.Settings
	tried          bool // a connection: by this way, or by one of those before
	unroutable     bool // the first of those before has no address
	noPath         bool // none passes
	listener       Host // nil for Local
	dialer         Host
	dial           string // which side dials: source, target
	address        string // of the listener
	peer           string // the only address that may connect, "" = any
	// deadline is how long both ends wait for its connections.
	deadline time.Duration
	// used tells that something has crossed it.
	used *atomic.Bool
}

// carrier brings two ends together by one kind of wire.
type carrier interface {
	// choose completes a link: who listens where, with how many connections.
	choose(l *Link, source, target Side) error
	// mode is how the connections of a link authenticate what crosses them.
	mode(l *Link) tcp.Mode
	// run moves m.
	run(ctx context.Context, m *session) error
	// limit names what limits m, given what its meters say.
	limit(m *session, limit string) string
}

func carrierOf(wire string) carrier {
	switch wire {
	case Local:
		return localCarrier{}
	case transport.SSH:
		return sshCarrier{}
	case transport.NC:
		return ncCarrier{}
	}
	return tcpCarrier{}
}

// Resolve is the link as a stream crosses it whose bytes are sealed (a raw stream of
// encrypted data), or not: its Wire is a definite one.
func (l Link) Resolve(sealed bool) Link {
	if l.Wire == transport.Auto {
		l.Wire = string(tcp.TLS)
		if sealed {
			l.Wire = string(tcp.Signed)
		}
	}
	return l
}

// ForSize is the link as a stream of about that many bytes crosses it.
func (l Link) ForSize(bytes uint64) Link {
	l.Streams = l.connections(bytes)
	return l
}

// Options are those of a stream that begins now.
func Options(w *transport.Settings, now time.Time) transfer.Options {
	return transfer.Options{
		Buffer: int64(w.Buffer), BandLimit: w.BandwidthAt(now),
		Compress: cmp.Or(w.Compress, "auto"), CompressThreads: w.CompressThreads,
	}
}

// tlsConnection is how many bytes a connection of TLS is planned to carry.
// AES-GCM under one key is good for 2^24.5 records of 16 KiB, some 390 GB, and
// crypto/tls never changes the key of a connection.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const tlsConnection = 256 << 30

// A connection that nobody asked for is made for so many bytes and more: with less it
// is hardly faster than the first alone, and each costs a handshake, or through the
// remote shell a login.
const (
	connectionFor = 8 << 20
	loginFor      = 64 << 20
)

// connections is how many carry a stream of bytes, 0 where that is unknown.
func (l *Link) connections(bytes uint64) int {
	n := l.Streams
	if l.requested.Streams == 0 && bytes > 0 {
		each := uint64(connectionFor)
		if l.Wire == transport.SSH {
			each = loginFor
		}
		n = int(min(uint64(n), (bytes+each-1)/each))
	}
	if l.carrier.mode(l) == tcp.TLS {
		n = max(n, int(min(tcp.MaxStreams, (bytes+tlsConnection-1)/tlsConnection)))
	}
	return n
}

// offer is for a stream of about that many bytes.
func (l *Link) offer(bytes uint64) tcp.Offer {
	return tcp.Offer{
		Mode: l.carrier.mode(l), Streams: l.connections(bytes), Address: l.address, Peer: l.peer,
		PortLow: l.Ports.Low, PortHigh: l.Ports.High, Deadline: l.deadline, Socket: l.Socket,
	}
}

// Report says how bytes cross and why.
type Report struct {
	Mode    string `json:"mode"` // local, signed, tls, plain, ssh, nc
	Why     string `json:"why"`
	Streams int    `json:"streams,omitempty"`
	Dial    string `json:"dial,omitempty"` // which side dials
	Address string `json:"address,omitempty"`
}

// Report says how streams will cross, of which some are sealed and others open.
func (l Link) Report(sealed, open bool) Report {
	r := Report{Mode: l.Wire, Why: l.why, Streams: l.Streams, Dial: l.dial, Address: l.address}
	if l.Wire == transport.Auto {
		switch {
		case sealed && open:
			r.Mode = "signed, tls"
		case sealed:
			r.Mode, r.Why = string(tcp.Signed), "raw streams of encrypted data: contents are secret already"
		case open:
			r.Mode, r.Why = string(tcp.TLS), "the data is not encrypted by itself"
		}
	}
	if l.Wire == transport.SSH && len(l.rejected) > 0 && !l.noPath {
		r.Why += "; no other way passes"
	}
	if strings.Contains(r.Address, ":") {
		r.Address = "[" + r.Address + "]"
	}
	if l.Ports.Low != 0 && l.listener != nil {
		r.Address += ":" + l.Ports.String()
	}
	return r
}
