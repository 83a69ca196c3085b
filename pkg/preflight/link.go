package preflight

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/finding"
	"zxfer/pkg/size"
)

// Link is what was measured of the network in one direction.
type Link struct {
	From, To       string // hosts
	BytesPerSecond uint64
	Streams        int
	Window         int // socket buffers as asked for, bytes; 0 = autotuning
	Seconds        float64
	// Limit is what package transfer's meters named.
	Limit string
	// Spare tells that the end whose processors limit has more that are free: one
	// connection is one processor's work at most.
	Spare bool

	// Of the sender's kernel (TCP_INFO), summed over the streams.
	RTT                              time.Duration // of the largest
	Busy, RwndLimited, SndbufLimited time.Duration
	Retransmits                      uint64
	Congestion                       string

	// WriteMax is how far the sender's kernel lets its buffers grow, ReadMax
	// how far the receiver's does; bytes, 0 = unknown.
	WriteMax, ReadMax int64

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

// HeldBack tells whether something else than the path's rate may limit the
// link: windows, buffers, losses, one processor of several. The same is seen of a
// path that is full: its queue makes the round trip long and loses what it cannot
// hold. Measuring with more streams tells the two apart.
func (l Link) HeldBack() bool {
	return l.shortWindow() || l.shortBuffer() || l.lossy() || l.oneProcessor()
}

func (l Link) oneProcessor() bool { return l.Spare && l.processor() != "" }

// processor is what limits a link that the network does not, "" if that does:
// a source and a target that are memory are their processors.
func (l Link) processor() string {
	switch {
	case strings.HasSuffix(l.Limit, "cpu"):
		return l.Limit
	case l.Limit == "source":
		return "sender cpu"
	case l.Limit == "target":
		return "receiver cpu"
	}
	return ""
}

func (l Link) shortWindow() bool { return strings.Contains(l.Limit, "receiver window") }

func (l Link) shortBuffer() bool { return strings.Contains(l.Limit, "send buffer") }

// lossy tells whether so much was lost that it may limit the rate.
func (l Link) lossy() bool {
	segments := uint64(float64(l.BytesPerSecond)*l.Seconds) / segment
	return l.Retransmits > 10 && l.Retransmits*lossy > segments && l.RTT > time.Millisecond
}

// Grew tells whether a link with more streams is faster about as much as it has
// more of them: then something still holds each stream back, else the path is
// full.
func (l Link) Grew(from Link) bool {
	return 4*l.BytesPerSecond*uint64(from.Streams) >= 3*from.BytesPerSecond*uint64(l.Streams)
}

// faster tells whether a link is so much faster than another that it is no
// coincidence.
func (l Link) faster(other Link) bool {
	return l.BytesPerSecond > other.BytesPerSecond+other.BytesPerSecond*fasterBy/100
}

// flight is how much of a rate in bytes per second is under way at once in each
// stream, in bytes.
func (l Link) flight(rate uint64) int64 {
	return int64(float64(rate) / float64(max(1, l.Streams)) * l.RTT.Seconds())
}

// window is a buffer, in bytes, that does not keep the link from a rate: the
// kernel counts its own overhead in it, at worst half, and a sender keeps up to
// a second round trip's worth.
func (l Link) window(rate uint64) int64 {
	w := int64(2 * smallBuffer)
	for w < 4*l.flight(rate) && w < 1<<30 {
		w *= 2
	}
	return w
}

// Measured is a link as it was measured.
type Measured struct {
	Link
	// More is the same link measured with more and more streams, empty where
	// that was not tried: what the fastest had is what the path carries, and
	// what a cure can be expected to give.
	More   []Link
	Back   bool   // the transfer goes the other way
	Failed string // why there was no data connection; nothing but From is known then
}

// carries says what limits a link and how to mend it.
func carries(m *Measured) []finding.Finding {
	if m.Failed != "" {
		return one(finding.Finding{Host: m.From, Severity: finding.Fail, Summary: "no data connection can be made", Evidence: m.Failed,
			Remedy: "open a port and name it: {{port-range}}; or let the other end connect: {{dial}}"})
	}
	l, more := m.Link, m.More
	f := finding.Finding{Host: l.From, Severity: finding.OK,
		Evidence: fmt.Sprintf("%s for %.1f s; TCP_INFO: round trip %s, busy %s, of that the receiver's window was shut %s, the send buffer full %s; %d retransmits; %s",
			english.Plural(l.Streams, "stream", ""), l.Seconds, l.RTT.Round(10*time.Microsecond), l.Busy.Round(time.Millisecond), l.RwndLimited.Round(time.Millisecond),
			l.SndbufLimited.Round(time.Millisecond), l.Retransmits, cmp.Or(l.Congestion, "unknown"))}
	where := fmt.Sprintf("%s to %s: %s", l.From, l.To, size.Rate(l.BytesPerSecond))
	best := l
	for _, m := range more {
		if m.BytesPerSecond > best.BytesPerSecond {
			best = m
		}
	}
	switch {
	case l.HeldBack() && (len(more) == 0 && !l.oneProcessor() || best.faster(l)):
		expected := ""
		switch n := len(more); {
		case n > 1 && more[n-1].Grew(more[n-2]), n == 1 && more[0].Grew(l):
			expected = "for as much or more, "
		case n > 0:
			expected = "for as much, "
		}
		cause, cure := l.cure(best.BytesPerSecond, expected)
		f.Severity, f.Summary, f.Remedy = finding.Warn, where+", "+cause, strings.Join(append(l.moreStreams(more, best), cure...), "; or ")
	case l.processor() != "":
		f.Summary = where + ", limited by the " + l.processor() + ", not by the network"
	case len(more) > 0 && more[len(more)-1].processor() != "":
		last := more[len(more)-1]
		f.Summary = fmt.Sprintf("%s, and little more with %d streams, limited by the %s", where, last.Streams, last.processor())
	default:
		f.Summary = where + ", which is what the path carries"
	}
	if m.Back && f.Severity == finding.Warn {
		f.Severity = finding.Note
	}
	return one(f)
}

// moreStreams recommends the fewest streams that were about as fast as the best
// of those tried.
func (l Link) moreStreams(more []Link, best Link) []string {
	for _, m := range more {
		if m.faster(l) && m.BytesPerSecond > best.BytesPerSecond-best.BytesPerSecond/10 {
			return []string{fmt.Sprintf("{{streams %d}} (measured: %s)", m.Streams, size.Rate(m.BytesPerSecond))}
		}
	}
	return nil
}

// cure says what holds the link back, and what to do on a host for a rate in
// bytes per second. expected is put before what gives that.
//
// net.core.rmem_max and wmem_max bound only buffers that a program asks for,
// not the kernel's autotuning: https://man7.org/linux/man-pages/man7/tcp.7.html
func (l Link) cure(rate uint64, expected string) (cause string, cures []string) {
	var cure string
	read := fmt.Sprintf("on %s: sysctl -w net.ipv4.tcp_rmem='4096 131072 %d'", l.To, l.window(rate))
	write := fmt.Sprintf("on %s: sysctl -w net.ipv4.tcp_wmem='4096 16384 %d'", l.From, l.window(rate))
	// What would be the next limit is raised with the first.
	short := func(limit int64) bool { return limit > 0 && limit < l.flight(rate)*3/2 }
	switch {
	case l.shortWindow():
		cause, cure = "limited by the receiver's window", read
		if short(l.WriteMax) {
			cure += ", and " + write
		}
	case l.shortBuffer():
		cause, cure = "limited by the sender's buffer", write
		if short(l.ReadMax) {
			cure += ", and " + read
		}
	case l.lossy():
		cause = fmt.Sprintf("%d segments were lost on the way", l.Retransmits)
		if l.Congestion == "bbr" {
			return cause, []string{"look for a bad cable, two ends that differ in duplex, a policer on the way"}
		}
		return cause, []string{"on " + l.From + ": modprobe tcp_bbr && sysctl -w net.ipv4.tcp_congestion_control=bbr"}
	default:
		return "limited by the " + l.processor() + ", of which each stream has one", nil
	}
	if l.Window > 0 {
		cure = "without {{window}}, which fixes both buffers"
	}
	return cause, []string{expected + cure}
}

// mtu compares the packets that pass with what the interfaces at both ends could
// send. It says nothing where that is not known.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (tcpi_pmtu)
func mtu(l *Measured) []finding.Finding {
	if l.Back || l.PathMTU == 0 || l.MTU == 0 {
		return nil
	}
	f := finding.Finding{Host: l.From, Severity: finding.OK, Summary: fmt.Sprintf("packets of up to %d bytes pass to %s", l.PathMTU, l.To),
		Evidence: fmt.Sprintf("TCP_INFO: tcpi_pmtu %d; MTU of %s on %s: %d", l.PathMTU, l.Interface, l.From, l.MTU)}
	if l.PeerMTU > 0 {
		f.Evidence += fmt.Sprintf(", of %s on %s: %d", l.PeerInterface, l.To, l.PeerMTU)
	}
	switch {
	case l.PathMTU < l.MTU:
		f.Severity, f.Summary = finding.Note, fmt.Sprintf("packets of more than %d bytes do not pass to %s, although %s has an MTU of %d", l.PathMTU, l.To, l.Interface, l.MTU)
		f.Remedy = "raise the MTU of what is on the way; or on " + l.From + ": " + command("ip", "link", "set", "dev", l.Interface, "mtu", fmt.Sprint(l.PathMTU))
	case l.PeerMTU > 0 && l.PeerMTU != l.MTU:
		f.Severity, f.Summary = finding.Note, fmt.Sprintf("the interfaces have different MTUs, %d and %d: segments are of the smaller size", l.MTU, l.PeerMTU)
		host, name := l.From, l.Interface
		if l.PeerMTU < l.MTU {
			host, name = l.To, l.PeerInterface
		}
		f.Remedy = "if the network takes it, on " + host + ": " + command("ip", "link", "set", "dev", name, "mtu", fmt.Sprint(max(l.MTU, l.PeerMTU)))
	}
	return one(f)
}
