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

// keepAlive finds an idle peer dead after 10 + 3 × 5 seconds.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// unackedTimeout is how long bytes that the receiving end of a stream sends
// may stay unacknowledged before its connection counts as cut.
//
// The sending end must not have such a limit: TCP_USER_TIMEOUT also ends
// connections whose peer answers, but keeps its window shut for that long,
// which a pool that syncs does (Linux 5.11, "tcp: fix TCP_USER_TIMEOUT with
// zero window"; https://man7.org/linux/man-pages/man7/tcp.7.html).
const unackedTimeout = 20 * time.Second

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

// asking returns a Control function that asks for what a socket is to be before
// the connection is made, as the window's scale is agreed on then. What was
// granted shows in Network.
func asking(s transport.Socket) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			return errors.Join(setWindow(fd, int(s.Window)), setCongestion(fd, s))
		})
	}
}

// setWindow sets socket buffers; 0 leaves them to the kernel's autotuning.
func setWindow(fd, bytes int) error {
	if bytes <= 0 {
		return nil
	}
	// The forced variants go beyond net.core.*mem_max; they need CAP_NET_ADMIN.
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

func control(c syscall.RawConn, f func(fd int) error) error {
	var ferr error
	if err := c.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

// Network is what the kernel says of a link's connections (TCP_INFO): counts
// and times summed over them, round trip and buffers of the largest.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (struct tcp_info)
type Network struct {
	Streams       int           `json:"streams"`
	RTT           time.Duration `json:"rtt_ns"`
	MinRTT        time.Duration `json:"min_rtt_ns,omitempty"` // of the connection where it is longest
	Segments      uint64        `json:"segments,omitempty"`   // with data that were sent, again or not
	Retransmits   uint64        `json:"retransmits"`
	DeliveryRate  uint64        `json:"delivery_rate"`      // bytes per second
	Acked         uint64        `json:"acked,omitempty"`    // bytes that were sent and that the other end has
	Received      uint64        `json:"received,omitempty"` // bytes that arrived, in order or not yet
	BusyTime      time.Duration `json:"busy_ns"`            // there was something to send
	RwndLimited   time.Duration `json:"rwnd_limited_ns"`    // of that, the receiver's window was full
	SndbufLimited time.Duration `json:"sndbuf_limited_ns"`  // of that, the send buffer was too small
	SendBuffer    int           `json:"send_buffer"`        // granted, bytes
	ReceiveBuffer int           `json:"receive_buffer"`
	Congestion    string        `json:"congestion,omitempty"` // control algorithm
	PathMTU       int           `json:"path_mtu,omitempty"`   // largest packet that the path is known to take unfragmented, bytes; the smallest of all
	Interface     string        `json:"interface,omitempty"`  // that has the connections' local address; where it was looked for
	InterfaceMTU  int           `json:"interface_mtu,omitempty"`
}

// add takes one connection's figures in.
func (n *Network) add(fd int) error {
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
