package preflight

import (
	"fmt"
	"strings"
	"time"
)

// Link is what was measured of the network in one direction.
type Link struct {
	From, To       string // hosts
	BytesPerSecond uint64
	Streams        int
	Seconds        float64
	// Limit is what package transfer's meters named.
	Limit string

	// Of the sender's kernel (TCP_INFO), summed over the streams.
	RTT                              time.Duration // of the largest
	Busy, RwndLimited, SndbufLimited time.Duration
	Retransmits                      uint64
	Congestion                       string

	PathMTU       int // largest packet that passes unfragmented, bytes; 0 = unknown
	Interface     string
	MTU, PeerMTU  int // of the interfaces at both ends
	PeerInterface string
}

const (
	// lossy is one retransmission in so many segments: from there on
	// congestion control by loss leaves a path underused.
	// https://datatracker.ietf.org/doc/html/rfc3649#section-1
	lossy = 2000
	// segment is the usual payload of a segment, in bytes.
	segment = 1448
)

// Lossy tells whether so much was lost that it limits the rate.
func (l Link) Lossy() bool {
	segments := uint64(float64(l.BytesPerSecond)*l.Seconds) / segment
	return l.Retransmits > 10 && l.Retransmits*lossy > segments && l.RTT > time.Millisecond
}

// Windowed tells whether a window or buffer limits the rate.
func (l Link) Windowed() bool {
	return strings.Contains(l.Limit, "receiver window") || strings.Contains(l.Limit, "send buffer")
}

// window is a buffer, in bytes, that a limited link would not fill: the
// kernel counts its own overhead in it, at worst half, and a sender keeps up
// to a second round trip's worth.
func (l Link) window() int64 {
	need := 4 * int64(float64(l.BytesPerSecond)*l.RTT.Seconds())
	w := int64(2 * smallBuffer)
	for w < need && w < 1<<30 {
		w *= 2
	}
	return w
}

// Finding says what limits the link and how to mend it. more is the same link
// measured with more streams, nil where that was not tried.
func (l Link) Finding(more *Link) Finding {
	f := Finding{ID: "link", Host: l.From, Severity: OK,
		Evidence: fmt.Sprintf("%d streams for %.1f s; TCP_INFO: round trip %s, busy %s, of that the receiver's window was shut %s, the send buffer full %s; %d retransmits; %s",
			l.Streams, l.Seconds, l.RTT.Round(10*time.Microsecond), l.Busy.Round(time.Millisecond), l.RwndLimited.Round(time.Millisecond),
			l.SndbufLimited.Round(time.Millisecond), l.Retransmits, orUnknown(l.Congestion))}
	where := fmt.Sprintf("%s to %s: %s/s", l.From, l.To, size(l.BytesPerSecond))
	streams := ""
	// What was tried is recommended only if it proved to help.
	if more != nil && more.BytesPerSecond > l.BytesPerSecond+l.BytesPerSecond*fasterBy/100 {
		streams = fmt.Sprintf("--streams %d (measured: %s/s); or ", more.Streams, size(more.BytesPerSecond))
	}
	switch {
	case strings.Contains(l.Limit, "receiver window"):
		f.Severity, f.Summary = Warn, where+", limited by the receiver's window"
		f.Remedy = fmt.Sprintf("%son %s: sysctl -w net.ipv4.tcp_rmem='4096 131072 %d'", streams, l.To, l.window())
	case strings.Contains(l.Limit, "send buffer"):
		f.Severity, f.Summary = Warn, where+", limited by the sender's buffer"
		f.Remedy = fmt.Sprintf("%son %s: sysctl -w net.ipv4.tcp_wmem='4096 16384 %d'", streams, l.From, l.window())
	case l.Lossy():
		f.Severity, f.Summary = Warn, where+fmt.Sprintf(", %d segments were lost on the way", l.Retransmits)
		f.Remedy = streams + "on " + l.From + ": modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr"
	case strings.HasSuffix(l.Limit, "cpu"):
		f.Summary = where + ", limited by the " + l.Limit + ", not by the network"
	default:
		f.Summary = where + ", which is what the path carries"
	}
	return f
}

// MTUFinding compares the packets that pass with what the interfaces at both
// ends could send. It says nothing where that is not known.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (tcpi_pmtu)
func (l Link) MTUFinding() []Finding {
	if l.PathMTU == 0 || l.MTU == 0 {
		return nil
	}
	f := Finding{ID: "mtu", Host: l.From, Severity: OK, Summary: fmt.Sprintf("packets of up to %d bytes pass to %s", l.PathMTU, l.To),
		Evidence: fmt.Sprintf("TCP_INFO: tcpi_pmtu %d; MTU of %s on %s: %d", l.PathMTU, l.Interface, l.From, l.MTU)}
	if l.PeerMTU > 0 {
		f.Evidence += fmt.Sprintf(", of %s on %s: %d", l.PeerInterface, l.To, l.PeerMTU)
	}
	switch {
	case l.PathMTU < l.MTU:
		f.Severity, f.Summary = Note, fmt.Sprintf("packets of more than %d bytes do not pass to %s, although %s has an MTU of %d", l.PathMTU, l.To, l.Interface, l.MTU)
		f.Remedy = "raise the MTU of what is on the way; or on " + l.From + ": " + command("ip", "link", "set", "dev", l.Interface, "mtu", fmt.Sprint(l.PathMTU))
	case l.PeerMTU > 0 && l.PeerMTU != l.MTU:
		f.Severity, f.Summary = Note, fmt.Sprintf("the interfaces have different MTUs, %d and %d: segments are of the smaller size", l.MTU, l.PeerMTU)
		host, name := l.From, l.Interface
		if l.PeerMTU < l.MTU {
			host, name = l.To, l.PeerInterface
		}
		f.Remedy = "if the network takes it, on " + host + ": " + command("ip", "link", "set", "dev", name, "mtu", fmt.Sprint(max(l.MTU, l.PeerMTU)))
	}
	return one(f)
}
