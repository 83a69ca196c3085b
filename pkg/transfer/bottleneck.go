package transfer

import (
	"slices"
	"time"
)

// What can limit a transfer, as LimitedBy names it.
const (
	LimitSource      = "source"
	LimitCompress    = "compress"
	LimitBandwidth   = "bandwidth limit"
	LimitSenderCPU   = "sender cpu"
	LimitNetwork     = "network"
	LimitWindow      = "network (receiver window)"
	LimitSendBuffer  = "network (send buffer)"
	LimitReceiverCPU = "receiver cpu"
	LimitExpand      = "decompress"
	LimitTarget      = "target"
	LimitVerify      = "verification" // reading back what was written
)

// minShare is the share of its lifetime for which a stage must have held up
// the others to be named: below it a transfer is too short, or too evenly
// matched, to have one bottleneck.
const minShare = 0.1

// A transfer of less than minBytes in less than minLifetime tells nothing of a rate:
// what takes longest is that both ends begin.
const (
	minBytes = 1 << 20
	minLifetime  = 2 * time.Second
)

// tooShort tells such a transfer, by either end's stages.
func tooShort(sender, receiver []Stage) bool {
	for _, s := range slices.Concat(sender, receiver) {
		if s.Bytes >= minBytes || s.Busy+s.WaitIn+s.WaitOut >= minLifetime {
			return false
		}
	}
	return true
}

// LimitedBy names what limits a transfer, from both ends' stages and what the
// kernel says of the sender's connections (nil for a local copy or while it is
// unknown); "" while nothing stands out. Either end's stages may be missing.
//
// Rings couple the stages: behind the slowest one all rings run full, and the
// stages there wait for their output; after it all rings run empty, and the
// stages there wait for their input. The slowest itself waits for neither, so
// the largest share of a lifetime spent Busy wins. A read stage is busy while
// it waits for the Source, a write stage while it waits for the Sink.
//
// The network is no stage. It is the slowest while the sender waits to write
// to it and the receiver waits to read from it, both at once: of a slow target
// the receiver would not wait to read, of a slow source the sender would not
// wait to write. So its share is the lesser of the two. Without the receiver's
// stages the sender's wait counts alone.
//
// Which part of the network it was, TCP_INFO says: of the time in which there
// was something to send, the receiver's window was shut, or the send buffer was
// too small for the round trip, for more than half, or see held. See also shortBuffer.
func LimitedBy(sender, receiver []Stage, n *Network) string {
	stage := func(name string) Stage {
		for _, stages := range [][]Stage{sender, receiver} {
			for _, s := range stages {
				if s.Name == name {
					return s
				}
			}
		}
		return Stage{}
	}
	share := func(part time.Duration, s Stage) float64 {
		if life := s.Busy + s.WaitIn + s.WaitOut; life > 0 {
			return float64(part) / float64(life)
		}
		return 0
	}
	if tooShort(sender, receiver) {
		return ""
	}
	best, most := "", minShare
	for _, c := range []struct{ limit, stage string }{
		{LimitSource, StageRead}, {LimitCompress, StageCompress}, {LimitBandwidth, StageLimit}, {LimitSenderCPU, StageSend},
		{LimitReceiverCPU, StageReceive}, {LimitExpand, StageExpand}, {LimitTarget, StageWrite},
		{LimitSenderCPU, StageHash}, {LimitVerify, StageVerify},
	} {
		s := stage(c.stage)
		if v := share(s.Busy, s); v > most {
			best, most = c.limit, v
		}
	}
	send, receive := stage(StageSend), stage(StageReceive)
	networkShare := share(send.WaitOut, send)
	if receive.Name != "" {
		networkShare = min(networkShare, share(receive.WaitIn, receive))
	}
	if networkShare > most {
		best = LimitNetwork
	}
	if best == LimitNetwork && n != nil && n.BusyTime > 0 {
		switch {
		case n.RwndLimited > windowThreshold(n):
			best = LimitWindow
		case n.SndbufLimited > n.BusyTime/2, shortBuffer(n):
			best = LimitSendBuffer
		}
	}
	return best
}

// minIdle is how much of a processor is idle on a host that has one to spare: less
// is what counting it in ticks leaves.
const minIdle = 0.1

// Exhausted names the processors of an end whose host has none to spare, "" where both
// have. Then all that runs there waits for them in turn, and a stage that is busy, or
// waits for a program, tells nothing of what that would do by itself.
func Exhausted(sender, receiver Progress) string {
	none := func(p Progress) bool { return p.Processors > 0 && p.Busy() > float64(p.Processors)-minIdle }
	switch {
	case none(sender):
		return LimitSenderCPU
	case none(receiver):
		return LimitReceiverCPU
	}
	return ""
}

// windowThreshold is for how long the receiver's window must have held connections up to be named.
// bbr sends no faster than what it saw arrive, and so seldom meets a window that is shut,
// though nothing else keeps it back.
func windowThreshold(n *Network) time.Duration {
	if n.Congestion == "bbr" {
		return n.BusyTime / 4
	}
	return n.BusyTime / 2
}

// shortBuffer tells whether the send buffers limit the rate, where the kernel
// does not count it as such: a buffer that is not allowed to grow also keeps
// the congestion window from growing, and looks as if that was the limit. A
// buffer that may grow is kept at twice the congestion window and more, so what
// is under way in one round trip is less than half of it.
//
// https://github.com/torvalds/linux/blob/v6.12/net/ipv4/tcp_input.c (tcp_sndbuf_expand)
// https://github.com/torvalds/linux/blob/v6.12/net/ipv4/tcp_output.c (tcp_cwnd_validate)
func shortBuffer(n *Network) bool {
	// Both are sums over the connections: this is the rate of one of them.
	rate := float64(n.Acked) / n.BusyTime.Seconds()
	return 2*rate*n.RTT.Seconds() > float64(n.SendBuffer) && n.SendBuffer > 0
}
