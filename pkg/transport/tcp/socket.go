package tcp

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
)

// keepAlive detects a dead peer on an idle connection after 10 + 3 × 5 seconds.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// unackedTimeout is how long bytes sent by the receiving end may stay unacknowledged before the
// connection is cut.
//
// The sending end must not have this limit. TCP_USER_TIMEOUT also ends connections whose peer
// answers but keeps its window closed for that long, as during a pool sync (Linux 5.11, "tcp:
// fix TCP_USER_TIMEOUT with zero window"; https://man7.org/linux/man-pages/man7/tcp.7.html).
const unackedTimeout = 20 * time.Second

// socketControl returns a net.Dialer Control function that sets the options of s. They must
// precede the connection, which negotiates the window scale. Network reports the granted
// values.
func socketControl(s transport.Socket) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return errors.Join(setWindow(fd, int(s.Window)), setCongestion(fd, s))
		})
	}
}

// setWindow sets the socket buffers; 0 keeps the kernel's autotuning.
func setWindow(fd, bytes int) error {
	if bytes <= 0 {
		return nil
	}
	// The forced variants exceed net.core.*mem_max and need CAP_NET_ADMIN.
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bytes) == nil {
			continue
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bytes); err != nil {
			return err
		}
	}
	return nil
}

func control(c syscall.RawConn, f func(fd int) error) error {
	var ferr error
	if err := c.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// control calls f with the connection's socket.
func (c *Conn) control(f func(fd int) error) error {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, f)
}

// farRTT is a longer round trip than in any LAN.
const farRTT = 5 * time.Millisecond

// Sizes in bytes for the connections of a link with a long round trip.
const (
	// farWindow is the receive window offered from the start. Otherwise the kernel offers 64 KiB
	// and doubles that with each round trip of data. This delays the slow start of cubic. bbr takes
	// the window for the limit of the link and stops its fast start.
	farWindow = 4 << 20
	// maxUnsent bounds the data that the kernel holds unsent for each of several connections.
	// If a connection slows down after a loss, the others would wait for that data.
	maxUnsent = 256 << 10
)

// offerWindow makes a socket offer farWindow, up to half of net.ipv4.tcp_rmem[2]. SO_RCVLOWAT
// enlarges the buffer that far and leaves autotuning on. SO_RCVBUF would end autotuning.
//
// https://github.com/torvalds/linux/blob/v6.12/net/ipv4/tcp.c (tcp_set_rcvlowat)
func offerWindow(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, farWindow); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1) // the default
}

// cubic and reno take a lost segment for congestion. If a link loses segments for other
// reasons, that costs most of the rate over a long round trip. bbr uses the delivery rate
// instead: https://queue.acm.org/detail.cfm?id=3022184. Without losses it is no faster.
//
// Many losses suffice for the switch. Few losses count only while the round trip is short, because a
// congested link has a queue, and only twice in a row: slow start overruns a small queue once.
const (
	lossCongestion = "bbr"
	manyLosses     = 300   // one retransmission in this many segments is many
	fewLosses      = 1500  // one in this many is few; fewer hardly slow several connections down
	minLosses      = 4     // least number of few losses
	minSegments    = 512   // least number of segments for few losses
	manySegments   = 4096  // least number of segments for many losses, and before their count
	maxSegments    = 12288 // then the count starts again
)

// WatchLosses switches the connections of a sender to bbr if losses call for it. It does
// nothing if the user chose an algorithm or the kernel lacks bbr. One goroutine calls it
// periodically.
func (l *Link) WatchLosses() {
	if l.congestionFixed || !l.losses.callForSwitch(l.Network()) {
		return
	}
	l.congestionFixed = true
	l.control(func(fd int) error { return setCongestion(fd, transport.Socket{Congestion: lossCongestion}) }) // on failure, the algorithm stays
}

// lossWatch counts the losses of a sender.
type lossWatch struct {
	start Network // at the start of the count
	lossy bool    // the previous count had few losses
}

// callForSwitch reports whether the losses since the start of the count call for bbr. The first
// segments never count: slow start causes losses of its own.
func (w *lossWatch) callForSwitch(now Network) bool {
	sent, lost := now.Segments-w.start.Segments, now.Retransmits-w.start.Retransmits
	switch {
	case sent < minSegments:
		return false
	case w.start.Segments == 0:
		w.start = now
		return false
	case now.MinRTT <= farRTT || now.Congestion != "cubic" && now.Congestion != "reno":
		return false
	case w.start.Segments >= manySegments && sent >= manySegments && lost*manyLosses >= sent:
		return true
	case lost >= minLosses && lost*fewLosses >= sent && 2*now.RTT < 3*now.MinRTT:
		if w.lossy {
			return true
		}
		w.start, w.lossy = now, true
	case sent >= maxSegments, w.start.Segments < manySegments && now.Segments >= manySegments:
		w.start, w.lossy = now, false
	}
	return false
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

// Supports returns an error if the host does not support the options of s. It does not check the
// window: the kernel grants as much as net.core.rmem_max and wmem_max allow.
func (t *TCP) Supports(s transport.Socket) error {
	name := s.Congestion
	switch {
	case name == "" || slices.Contains(t.Congestion, name):
		return nil
	case t.Congestion == nil:
		return fault.Refusef("install the same zxfer there, or omit {{congestion}}", "{{congestion %s}}: zxfer there is older and does not support it", name)
	}
	return fault.Refusef("choose one of these, or run there as root: modprobe tcp_"+name+"\nwithout CAP_NET_ADMIN, also add it to net.ipv4.tcp_allowed_congestion_control",
		"{{congestion %s}}: the kernel offers %s", name, cmp.Or(strings.Join(t.Congestion, ", "), "none by name"))
}

// setCongestion sets the congestion control of a socket. It checks the name first, so that the
// kernel does not load a module for an unknown one.
func setCongestion(fd int, s transport.Socket) error {
	if s.Congestion == "" {
		return nil
	}
	local := ReadTCP(os.DirFS("/"))
	if err := local.Supports(s); err != nil {
		return err
	}
	return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, s.Congestion)
}

// Network holds the kernel's figures for the connections of a link (TCP_INFO). Counts and times
// are sums; round trip and buffers are those of the largest connection.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (struct tcp_info)
type Network struct {
	Streams       int           `json:"streams"`
	RTT           time.Duration `json:"rtt_ns"`
	MinRTT        time.Duration `json:"min_rtt_ns,omitempty"` // of the connection with the longest one
	Segments      uint64        `json:"segments,omitempty"`   // data segments sent, including retransmissions
	Retransmits   uint64        `json:"retransmits"`
	DeliveryRate  uint64        `json:"delivery_rate"`      // bytes per second
	Acked         uint64        `json:"acked,omitempty"`    // bytes acknowledged by the other end
	Received      uint64        `json:"received,omitempty"` // bytes received, in or out of order
	BusyTime      time.Duration `json:"busy_ns"`            // time with data to send
	RwndLimited   time.Duration `json:"rwnd_limited_ns"`    // part of BusyTime, limited by the receive window
	SndbufLimited time.Duration `json:"sndbuf_limited_ns"`  // part of BusyTime, limited by the send buffer
	SendBuffer    int           `json:"send_buffer"`        // granted, bytes
	ReceiveBuffer int           `json:"receive_buffer"`
	Congestion    string        `json:"congestion,omitempty"` // congestion control algorithm
	PathMTU       int           `json:"path_mtu,omitempty"`   // smallest path MTU of the connections, bytes
	Interface     string        `json:"interface,omitempty"`  // interface of the local address, if looked up
	InterfaceMTU  int           `json:"interface_mtu,omitempty"`
}

// Network returns the kernel's figures for all connections. After the link is closed, it
// returns the last ones.
func (l *Link) Network() Network {
	var n Network
	for _, c := range l.conns {
		n.add(c)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.Streams == len(l.conns) {
		l.last = n
	}
	return l.last
}

// add adds the figures of one connection, and counts it in Streams if they are known.
func (n *Network) add(c *Conn) {
	if s, ok := c.tcp.(counter); ok {
		n.Streams++
		n.Acked += s.Acked()
		n.Received += s.Received()
		return
	}
	_ = c.control(n.addSocket)
}

func (n *Network) addSocket(fd int) error {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return err
	}
	n.Streams++
	n.RTT = max(n.RTT, time.Duration(info.Rtt)*time.Microsecond)
	n.MinRTT = max(n.MinRTT, time.Duration(info.Min_rtt)*time.Microsecond)
	n.Segments += uint64(info.Data_segs_out)
	n.Retransmits += uint64(info.Total_retrans)
	if p := int(info.Pmtu); p > 0 && (n.PathMTU == 0 || p < n.PathMTU) {
		n.PathMTU = p
	}
	n.DeliveryRate += info.Delivery_rate
	n.Acked += info.Bytes_acked
	n.Received += info.Bytes_received
	n.BusyTime += time.Duration(info.Busy_time) * time.Microsecond
	n.RwndLimited += time.Duration(info.Rwnd_limited) * time.Microsecond
	n.SndbufLimited += time.Duration(info.Sndbuf_limited) * time.Microsecond
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		n.SendBuffer = max(n.SendBuffer, v)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
		n.ReceiveBuffer = max(n.ReceiveBuffer, v)
	}
	if v, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		n.Congestion = v
	}
	return nil
}
