package tcp

import (
	"time"

	"zxfer/pkg/transport"
)

// Cubic and reno take a lost segment for a full line. Where a line loses some for other
// reasons, that costs most of it over a long round trip; bbr goes by what arrives:
// https://queue.acm.org/detail.cfm?id=3022184. Where little is lost it is no faster.
const (
	lossCongestion = "bbr"
	farRTT         = 5 * time.Millisecond // more than any LAN's
	lossyOne       = 300                  // of so many segments one was sent again, at least
	judged         = 4096                 // segments since the last look
)

// WatchLosses gives the connections of this end, which sends, bbr where losses call for
// it, the kernel has it, and nobody chose an algorithm. It is called every so often,
// by one goroutine.
func (l *Link) WatchLosses() {
	if l.chosen {
		return
	}
	now, before := l.Network(), l.minded
	if now.Segments < before.Segments+judged {
		return
	}
	l.minded = now
	if !now.lossy(before) {
		return
	}
	l.chosen = true
	for _, c := range l.conns {
		if raw, err := c.tcp.SyscallConn(); err == nil {
			_ = control(raw, func(fd int) error { return setCongestion(fd, transport.Socket{Congestion: lossCongestion}) }) // else it stays as it is
		}
	}
}

// lossy tells whether enough was lost since an earlier look. The first segments are
// not judged: they look for how much the line takes.
func (n Network) lossy(before Network) bool {
	return before.Segments > 0 && n.MinRTT > farRTT && (n.Congestion == "cubic" || n.Congestion == "reno") &&
		(n.Retransmits-before.Retransmits)*lossyOne >= n.Segments-before.Segments
}
