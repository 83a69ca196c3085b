package connect

import (
	"cmp"
	"strings"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// linkDeadline is how long both ends wait for the connections of a link. probeTimeout is the
// same for a probe. probePause precedes the second probe after an error that says nothing about
// the path.
const (
	linkDeadline = 30 * time.Second
	probeTimeout = 3 * time.Second
	probePause   = time.Second
)

// Link is a path between two hosts, in both directions.
type Link struct {
	// Settings are the requested ones, with Wire (or Local) and Streams chosen.
	transport.Settings
	why     string
	carrier carrier
	// source, target and requested are the arguments of Choose. rejected lists the paths that
	// failed, and remaining the paths not yet tried.
	source, target Side
	requested      transport.Settings
	rejected       []string
	remaining      []transport.Settings
	tried          bool // this path or a rejected one was probed
	unroutable     bool // the first rejected path has no address
	noPath         bool // all paths failed
	listener       Host // nil for Local
	dialer         Host
	dial           string // which side dials: source, target
	address        string // of the listener
	peer           string // the only address that may connect, "" = any
	// deadline is how long both ends wait for the connections.
	deadline time.Duration
	// used is set once a probe or data has passed the link.
	used *atomic.Bool
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

// ForSize returns the link with the connections for a stream of about that many bytes.
func (l Link) ForSize(bytes uint64) Link {
	l.Streams = l.connections(bytes)
	return l
}

// Options returns the options of a stream that starts at now.
func Options(w *transport.Settings, now time.Time) transfer.Options {
	return transfer.Options{
		Buffer: int64(w.Buffer), BandLimit: w.BandwidthAt(now),
		Compress: cmp.Or(w.Compress, "auto"), CompressThreads: w.CompressThreads,
	}
}

// offer returns the listener offer for a stream of about that many bytes.
func (l *Link) offer(bytes uint64) tcp.Offer {
	return tcp.Offer{
		Mode: l.carrier.mode(l), Streams: l.connections(bytes), Address: l.address, Peer: l.peer,
		PortLow: l.Ports.Low, PortHigh: l.Ports.High, Deadline: l.deadline, Socket: l.Socket,
	}
}

// Report describes the path and the reason for it.
type Report struct {
	Mode    string `json:"mode"` // local, signed, tls, plain, ssh, nc
	Why     string `json:"why"`
	Streams int    `json:"streams,omitempty"`
	Dial    string `json:"dial,omitempty"` // which side dials
	Address string `json:"address,omitempty"`
}

// Report returns the report for a link. encrypted and open tell which kinds of streams will use
// it.
func (l Link) Report(encrypted, open bool) Report {
	r := Report{Mode: l.Wire, Why: l.why, Streams: l.Streams, Dial: l.dial, Address: l.address}
	if l.Wire == transport.Auto {
		switch {
		case encrypted && open:
			r.Mode = "signed, tls"
		case encrypted:
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
