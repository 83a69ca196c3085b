package connect

import (
	"cmp"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// Link is a path between two hosts, in both directions. It does not change.
type Link struct {
	// Settings are the requested ones, with Wire (or Local) and Streams chosen.
	transport.Settings
	why            string
	carrier        carrier
	source, target Side
	requested      transport.Settings
	remaining      int  // paths of its Search after it
	last           bool // all other paths failed
	listener       Host // nil for Local
	dialer         Host
	dial           string        // which side dials: source, target
	rtt            time.Duration // between the hosts, 0 = unknown
	address        string        // of the listener
	peer           string        // the only address that may connect, "" = any
	deadline       time.Duration // how long both ends wait for the connections
}

// ForSize returns the link with the connections for a stream of about that many bytes.
func (l Link) ForSize(bytes uint64) Link {
	l.Streams = l.connections(bytes)
	return l
}

// farBlock is the frame size in bytes for several connections with a long round trip. If one slows
// down after a loss, the others soon wait for the frame that it carries.
const farBlock = 256 << 10

// ForLink returns the options with the frame size for the link.
func (l Link) ForLink(o transfer.Options) transfer.Options {
	if l.rtt > lanRTT && l.Streams > 1 {
		o.Block = farBlock
	}
	return o
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
			r.Mode, r.Why = string(tcp.Signed), "raw streams of encrypted data are already secret"
		case open:
			r.Mode, r.Why = string(tcp.TLS), "the data is not encrypted"
		}
	}
	if l.Wire == transport.SSH && l.last {
		r.Why += "; all other paths failed"
	}
	if strings.Contains(r.Address, ":") {
		r.Address = "[" + r.Address + "]"
	}
	if l.Ports.Low != 0 && l.listener != nil {
		r.Address += ":" + l.Ports.String()
	}
	return r
}

// planRate is the rate in bytes per second that the number of streams is planned for: 10
// Gbit/s.
const planRate = 10e9 / 8

// maxChosenStreams bounds the default number of streams. More gain little, and each costs
// socket buffers.
const maxChosenStreams = 8

// Up to a round trip of lanRTT, one connection suffices if windows may grow to defaultWindow,
// Linux' default for sending. That carries 10 Gbit/s over most of this range. Such a short
// measured round trip is mostly the time of the processes at both ends of ssh.
const (
	lanRTT        = 5 * time.Millisecond
	defaultWindow = 4 << 20 // bytes
)

// chooseStreams makes streams × window twice the bandwidth-delay product of a 10 Gbit/s link.
// Windows are bounded by the kernels' limits.
func (l *Link) chooseStreams(a, b Side) {
	l.rtt = a.RTT() + b.RTT()
	if l.Streams == 0 {
		l.Streams = streamsFor(int64(l.Window), l.rtt, a.Facts, b.Facts)
	}
}

func streamsFor(window int64, rtt time.Duration, a, b hosts.Facts) int {
	w := window
	for _, limit := range []int64{a.TCPReadMax, b.TCPReadMax, a.TCPWriteMax, b.TCPWriteMax} {
		if window == 0 && limit > 0 && (w == 0 || limit < w) {
			w = limit
		}
	}
	if w <= 0 || rtt <= 0 || rtt <= lanRTT && w >= defaultWindow {
		return 1
	}
	need := 2 * planRate * rtt.Seconds()
	return min(maxChosenStreams, max(1, int(need/float64(w)+0.999)))
}

// maxTLSConnection is the number of bytes planned for one TLS connection. If a stream is larger than its
// estimate, a connection ends at its limit of 360 GiB, and the stream is resumed.
const maxTLSConnection = 256 << 30

// Least bytes for each connection, if the user did not request a number. With fewer bytes,
// another connection hardly helps, and costs a handshake or an ssh login. If the round trip is
// long, a connection takes many to reach its rate, so that more of them help sooner.
const (
	bytesPerConnection    = 8 << 20
	bytesPerFarConnection = 2 << 20
	bytesPerSSHConnection = 64 << 20
)

// connections returns the number of connections for a stream of that many bytes, 0 = unknown.
func (l *Link) connections(bytes uint64) int {
	n := l.Streams
	if l.requested.Streams == 0 && bytes > 0 {
		each := uint64(bytesPerConnection)
		switch {
		case l.Wire == transport.SSH:
			each = bytesPerSSHConnection
		case l.rtt > lanRTT:
			each = bytesPerFarConnection
		}
		n = int(min(uint64(n), (bytes+each-1)/each))
	}
	if l.carrier.mode(l) == tcp.TLS {
		n = max(n, int(min(tcp.MaxStreams, (bytes+maxTLSConnection-1)/maxTLSConnection)))
	}
	return n
}
