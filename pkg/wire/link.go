package wire

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Link is the authenticated connections of one transfer.
type Link struct {
	mode  Mode
	conns []*Conn
	once  sync.Once
	last  Network // taken when the link was closed
}

func newLink(mode Mode, conns []*Conn) *Link { return &Link{mode: mode, conns: conns} }

// Mode is how the link's bytes cross.
func (l *Link) Mode() Mode { return l.mode }

// Conns are the connections, by index.
func (l *Link) Conns() []*Conn { return l.conns }

// Close ends all connections; reads and writes of both ends fail at once. It
// may be called more than once.
func (l *Link) Close() error {
	l.once.Do(func() {
		l.last = l.Network()
		closeAll(l.conns)
	})
	return nil
}

// Abort tells the peer that nothing will come, and why, as far as the
// connection takes it without waiting, and closes the link.
func (l *Link) Abort(why error) {
	f := NewFrame(maxControl)
	f.Kind = Abort
	f.SetText(why.Error())
	c := l.conns[0]
	_ = c.rw.SetWriteDeadline(time.Now().Add(2 * time.Second))
	_ = c.WriteFrame(f) // the peer sees a cut instead
	_ = l.Close()
}

// SetText makes a text the payload of a control frame.
func (f *Frame) SetText(s string) {
	f.grow(maxControl)
	f.SetLen(copy(f.Room()[:maxControl], s))
}

// Network is what the kernel says of connections (TCP_INFO): times and
// retransmits summed, the round trip and buffers of the worst.
type Network struct {
	Streams       int           `json:"streams"`
	RTT           time.Duration `json:"rtt_ns"`
	Retransmits   uint64        `json:"retransmits"`
	DeliveryRate  uint64        `json:"delivery_rate"` // bytes per second, of all streams
	BusyTime      time.Duration `json:"busy_ns"`
	RwndLimited   time.Duration `json:"rwnd_limited_ns"`   // the receiver's window was full
	SndbufLimited time.Duration `json:"sndbuf_limited_ns"` // the sender's buffer was
	SendBuffer    int           `json:"send_buffer"`       // granted, bytes
	ReceiveBuffer int           `json:"receive_buffer"`
	Congestion    string        `json:"congestion,omitempty"`
}

// Network asks the kernel about all connections.
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/tcp.h (struct tcp_info)
func (l *Link) Network() Network {
	n := Network{Streams: len(l.conns)}
	for _, c := range l.conns {
		if c.tcp == nil {
			continue
		}
		raw, err := c.tcp.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) { n.add(int(fd)) }) // closed: the last figures stay
	}
	if n.RTT == 0 {
		return l.last
	}
	return n
}

func (n *Network) add(fd int) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return
	}
	us := time.Microsecond
	n.RTT = max(n.RTT, time.Duration(info.Rtt)*us)
	n.Retransmits += uint64(info.Total_retrans)
	n.DeliveryRate += info.Delivery_rate
	n.BusyTime += time.Duration(info.Busy_time) * us
	n.RwndLimited += time.Duration(info.Rwnd_limited) * us
	n.SndbufLimited += time.Duration(info.Sndbuf_limited) * us
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		n.SendBuffer = max(n.SendBuffer, v)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
		n.ReceiveBuffer = max(n.ReceiveBuffer, v)
	}
	if v, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil {
		n.Congestion = v
	}
}
