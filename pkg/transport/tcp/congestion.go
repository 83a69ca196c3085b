package tcp

import (
	"cmp"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
)

// Cubic and reno take a lost segment for a full line. Where a line loses some for other
// reasons, that costs most of it over a long round trip; bbr goes by what arrives:
// https://queue.acm.org/detail.cfm?id=3022184. Where little is lost it is no faster.
const (
	lossCongestion = "bbr"
	minLossyRTT         = 5 * time.Millisecond // more than any LAN's
	lossRatio       = 300                  // of so many segments one was sent again, at least
	minSegments         = 4096                 // segments since the last look
)

// WatchLosses gives the connections of this end, which sends, bbr where losses call for
// it, the kernel has it, and nobody chose an algorithm. It is called every so often,
// by one goroutine.
func (l *Link) WatchLosses() {
	if l.congestionFixed {
		return
	}
	now, previous := l.Network(), l.lastChecked
	if now.Segments < previous.Segments+minSegments {
		return
	}
	l.lastChecked = now
	if !now.lossy(previous) {
		return
	}
	l.congestionFixed = true
	for _, c := range l.conns {
		if raw, err := c.tcp.SyscallConn(); err == nil {
			_ = control(raw, func(fd int) error { return setCongestion(fd, transport.Socket{Congestion: lossCongestion}) }) // else it stays as it is
		}
	}
}

// lossy tells whether enough was lost since an earlier look. The first segments are
// not judged: they look for how much the line takes.
func (n Network) lossy(previous Network) bool {
	return previous.Segments > 0 && n.MinRTT > minLossyRTT && (n.Congestion == "cubic" || n.Congestion == "reno") &&
		(n.Retransmits-previous.Retransmits)*lossRatio >= n.Segments-previous.Segments
}

// TCP is what a host's kernel offers to sockets; a field that is 0 is unknown.
type TCP struct {
	TCPReadMax  int64 `json:"tcp_read_max"`  // net.ipv4.tcp_rmem[2]: what autotuning may grow a window to, bytes
	TCPWriteMax int64 `json:"tcp_write_max"` // net.ipv4.tcp_wmem[2]
	// Congestion are the algorithms that a socket may ask for; nil from a zxfer
	// that does not know them.
	Congestion []string `json:"congestion"`
}

// ReadTCP reads it from a host's root.
func ReadTCP(root fs.FS) TCP {
	words := func(name string) []string { // none where it cannot be read
		text, _ := fs.ReadFile(root, "proc/sys/net/ipv4/"+name)
		return strings.Fields(string(text))
	}
	list := "tcp_allowed_congestion_control"
	if administersNetwork() {
		list = "tcp_available_congestion_control"
	}
	return TCP{TCPReadMax: sysinfo.TCPReadMax(root), TCPWriteMax: sysinfo.TCPWriteMax(root), Congestion: append([]string{}, words(list)...)}
}

// administersNetwork tells whether this process has CAP_NET_ADMIN, which root lacks in
// most containers and in the units that zxfer writes.
func administersNetwork() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// Takes tells why a host cannot have such sockets. A window is granted as far as
// net.core.rmem_max and wmem_max allow.
func (t *TCP) Takes(s transport.Socket) error {
	name := s.Congestion
	switch {
	case name == "" || slices.Contains(t.Congestion, name):
		return nil
	case t.Congestion == nil:
		return fault.Refusef("install this zxfer there, or leave {{congestion}} out", "{{congestion %s}}: the zxfer there is older and does not know of it", name)
	}
	return fault.Refusef("choose one of these, or as root there: modprobe tcp_"+name+"; without CAP_NET_ADMIN it has to be in net.ipv4.tcp_allowed_congestion_control, too",
		"{{congestion %s}}: the kernel offers %s", name, cmp.Or(strings.Join(t.Congestion, ", "), "none by name"))
}

// setCongestion asks for an algorithm. The kernel would load a module for a name
// that it does not have, as others wish: it is not asked to.
func setCongestion(fd int, s transport.Socket) error {
	if s.Congestion == "" {
		return nil
	}
	here := ReadTCP(os.DirFS("/"))
	if err := here.Takes(s); err != nil {
		return err
	}
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, s.Congestion)
}
