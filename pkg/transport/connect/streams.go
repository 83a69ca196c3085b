package connect

import (
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
)

// planRate is the rate in bytes per second that the number of streams is
// chosen for: 10 Gbit/s.
const planRate = 10e9 / 8

// maxChosenStreams bounds the streams chosen without being asked: beyond it
// the gain is small and every stream costs a socket's buffers.
const maxChosenStreams = 8

// A round trip up to lanRTT needs no more than one connection where windows may
// grow to defaultWindow, Linux' default for sending: that carries 10 Gbit/s over
// most of it. Besides, so short a time is mostly what the processes at both
// ends of the remote shell take, not the network.
const (
	lanRTT        = 5 * time.Millisecond
	defaultWindow = 4 << 20 // bytes
)

// chooseStreams makes streams × window cover twice the bandwidth-delay
// product of a 10 Gbit/s link, within what the kernels let a window grow to.
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

// maxTLSConnection is how many bytes a connection of TLS is planned to carry.
// AES-GCM under one key is good for 2^24.5 records of 16 KiB, some 390 GB, and
// crypto/tls never changes the key of a connection.
//
// https://www.rfc-editor.org/rfc/rfc8446#section-5.5
const maxTLSConnection = 256 << 30

// A connection that nobody asked for is made for so many bytes and more: with less it
// is hardly faster than the first alone, and each costs a handshake, or through the
// remote shell a login.
const (
	bytesPerConnection    = 8 << 20
	bytesPerSSHConnection = 64 << 20
)

// connections is how many carry a stream of bytes, 0 where that is unknown.
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
