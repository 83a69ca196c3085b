package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

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

// Network asks the kernel about all connections. Of a closed link it returns
// the last figures.
func (l *Link) Network() Network {
	var n Network
	for _, c := range l.conns {
		raw, err := c.tcp.SyscallConn()
		if err != nil {
			continue
		}
		_ = control(raw, n.add) // closed: counted by n.Streams
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.Streams == len(l.conns) {
		l.last = n
	}
	return l.last
}
