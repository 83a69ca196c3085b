package connect

import (
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

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
	if l.Streams == 0 {
		l.Streams = streamsFor(int64(l.Window), a.RTT()+b.RTT(), a.Facts, b.Facts)
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

// maxTLSConnection is the number of bytes planned for one TLS connection. AES-GCM allows 2^24.5
// records of 16 KiB per key, about 390 GB, and crypto/tls never changes the key.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const maxTLSConnection = 256 << 30

// Least bytes for each connection, if the user did not request a number. With fewer bytes,
// another connection hardly helps, and costs a handshake or an ssh login.
const (
	bytesPerConnection    = 8 << 20
	bytesPerSSHConnection = 64 << 20
)

// connections returns the number of connections for a stream of that many bytes, 0 = unknown.
func (l *Link) connections(bytes uint64) int {
	n := l.Streams
	if l.requested.Streams == 0 && bytes > 0 {
		each := uint64(bytesPerConnection)
		if l.Wire == transport.SSH {
			each = bytesPerSSHConnection
		}
		n = int(min(uint64(n), (bytes+each-1)/each))
	}
	if l.carrier.mode(l) == tcp.TLS {
		n = max(n, int(min(tcp.MaxStreams, (bytes+maxTLSConnection-1)/maxTLSConnection)))
	}
	return n
}
