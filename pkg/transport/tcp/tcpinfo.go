package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

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
		raw, err := c.tcp.SyscallConn()
		if err != nil {
			continue
		}
		_ = control(raw, n.add) // n.Streams shows whether it failed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.Streams == len(l.conns) {
		l.last = n
	}
	return l.last
}

// add adds the figures of one connection.
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
