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

// cubic and reno take a lost segment for congestion. If a link loses segments for other
// reasons, that costs most of the rate over a long round trip. bbr uses the delivery rate
// instead: https://queue.acm.org/detail.cfm?id=3022184. Without losses it is no faster.
const (
	lossCongestion = "bbr"
	minLossyRTT    = 5 * time.Millisecond // longer than in any LAN
	lossRatio      = 300                  // one retransmission in this many segments is lossy
	minSegments    = 4096                 // least number of segments between checks
)

// WatchLosses switches the connections of a sender to bbr if losses call for it. It does
// nothing if the user chose an algorithm or the kernel lacks bbr. One goroutine calls it
// periodically.
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
			_ = control(raw, func(fd int) error { return setCongestion(fd, transport.Socket{Congestion: lossCongestion}) }) // on failure, the algorithm stays
		}
	}
}

// lossy reports whether the link has lost too much since the previous check. The first check
// never counts: slow start causes losses of its own.
func (n Network) lossy(previous Network) bool {
	return previous.Segments > 0 && n.MinRTT > minLossyRTT && (n.Congestion == "cubic" || n.Congestion == "reno") &&
		(n.Retransmits-previous.Retransmits)*lossRatio >= n.Segments-previous.Segments
}

// TCP lists what a host's kernel offers to sockets. A zero field is unknown.
type TCP struct {
	TCPReadMax  int64 `json:"tcp_read_max"`  // net.ipv4.tcp_rmem[2]: largest autotuned receive window, bytes
	TCPWriteMax int64 `json:"tcp_write_max"` // net.ipv4.tcp_wmem[2], bytes
	// Congestion lists the algorithms that a socket may request. An earlier zxfer reports nil.
	Congestion []string `json:"congestion"`
}

// ReadTCP reads the TCP settings from a host's root file system.
func ReadTCP(root fs.FS) TCP {
	words := func(name string) []string { // nil if it cannot be read
		text, _ := fs.ReadFile(root, "proc/sys/net/ipv4/"+name)
		return strings.Fields(string(text))
	}
	list := "tcp_allowed_congestion_control"
	if administersNetwork() {
		list = "tcp_available_congestion_control"
	}
	return TCP{TCPReadMax: sysinfo.TCPReadMax(root), TCPWriteMax: sysinfo.TCPWriteMax(root), Congestion: append([]string{}, words(list)...)}
}

// administersNetwork reports whether this process has CAP_NET_ADMIN. Root lacks it in most
// containers and in the units that zxfer writes.
func administersNetwork() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_NET_ADMIN) != 0
}

// Takes returns an error if the host does not support the options of s. It does not check the
// window: the kernel grants as much as net.core.rmem_max and wmem_max allow.
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

// setCongestion sets the congestion control of a socket. It checks the name first, so that the
// kernel does not load a module for an unknown one.
func setCongestion(fd int, s transport.Socket) error {
	if s.Congestion == "" {
		return nil
	}
	local := ReadTCP(os.DirFS("/"))
	if err := local.Takes(s); err != nil {
		return err
	}
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, s.Congestion)
}
