package connect

import (
	"cmp"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// linkDeadline is how long an offered listener waits for its connections,
// and the other end tries to make them; probeTimeout is that of the one by which
// a way is tried, and probePause comes before another try of what is no word on it.
const (
	linkDeadline = 30 * time.Second
	probeTimeout = 3 * time.Second
	probePause   = time.Second
)

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

// Resolve is the link as a stream crosses it whose bytes are sealed (a raw stream of
// encrypted data), or not: its Wire is a definite one.
func (l Link) Resolve(encrypted bool) Link {
	if l.Wire == transport.Auto {
		l.Wire = string(tcp.TLS)
		if encrypted {
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

// offer is for a stream of about that many bytes.
func (l *Link) offer(bytes uint64) tcp.Offer {
	return tcp.Offer{
		Mode: l.carrier.mode(l), Streams: l.connections(bytes), Address: l.address, Peer: l.peer,
		PortLow: l.Ports.Low, PortHigh: l.Ports.High, Deadline: l.deadline, Socket: l.Socket,
	}
}
