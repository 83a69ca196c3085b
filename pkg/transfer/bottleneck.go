package transfer

import (
	"cmp"
	"slices"
	"time"
)

// Bottlenecks that LimitedBy returns.
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
	LimitVerify      = "verification" // reading back written blocks
)

// minShare is the least busy share of a stage's lifetime to name it. Below it, the transfer is
// too short or too evenly matched to have one bottleneck.
const minShare = 0.1

// A transfer below both limits has no meaningful rate: most of its time is startup at both
// ends.
const (
	minBytes    = 1 << 20
	minLifetime = 2 * time.Second
)

// LimitedBy returns the bottleneck of a transfer, or "" if none stands out. n holds the figures
// of the sender's connections, nil if unknown or for a local copy. The stages of one end may be
// missing.
//
// Rings couple the stages. Upstream of the slowest stage, rings are full and stages wait for
// their output. Downstream, rings are empty and stages wait for their input. The slowest stage
// waits for neither, so the largest busy share of a lifetime wins. A read stage is busy while
// it waits for the Source, a write stage while it waits for the Sink.
//
// The network is not a stage. It is the slowest part while the sender waits to write to it and
// the receiver waits to read from it. With a slow target the receiver does not wait, with a
// slow source the sender does not. So the network's share is the lesser of the two, or the
// sender's alone if the receiver's stages are missing.
//
// TCP_INFO shows which part of the network it is: a closed receive window (see windowThreshold)
// or a send buffer too small for the round trip (see shortBuffer).
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
	best, topShare := "", minShare
	for _, c := range []struct{ limit, stage string }{
		{LimitSource, StageRead}, {LimitCompress, StageCompress}, {LimitBandwidth, StageLimit}, {LimitSenderCPU, StageSend},
		{LimitReceiverCPU, StageReceive}, {LimitExpand, StageExpand}, {LimitTarget, StageWrite},
		{LimitSenderCPU, StageHash}, {LimitVerify, StageVerify},
	} {
		s := stage(c.stage)
		if v := share(s.Busy, s); v > topShare {
			best, topShare = c.limit, v
		}
	}
	send, receive := stage(StageSend), stage(StageReceive)
	networkShare := share(send.WaitOut, send)
	if receive.Name != "" {
		networkShare = min(networkShare, share(receive.WaitIn, receive))
	}
	if networkShare > topShare {
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

// minIdle is the least number of idle processors on a host with spare capacity. Smaller values
// are rounding of clock ticks.
const minIdle = 0.1

// ExhaustedCPU returns the limit of the end whose host has no idle processor, or "". On such a
// host every stage waits for a processor, so its busy time says little about the stage itself.
func ExhaustedCPU(sender, receiver Progress) string {
	none := func(p Progress) bool { return p.Processors > 0 && p.Busy() > float64(p.Processors)-minIdle }
	switch {
	case none(sender):
		return LimitSenderCPU
	case none(receiver):
		return LimitReceiverCPU
	}
	return ""
}

// windowThreshold returns how long a closed receive window must have blocked the connections to
// be the bottleneck. bbr sends no faster than data arrives, so it rarely meets a closed window
// even if only the window limits it.
func windowThreshold(n *Network) time.Duration {
	if n.Congestion == "bbr" {
		return n.BusyTime / 4
	}
	return n.BusyTime / 2
}

// shortBuffer reports whether send buffers limit the rate although the kernel does not count
// it. A buffer that cannot grow also keeps the congestion window from growing, which then looks
// like the limit. A buffer that may grow is at least twice the congestion window, so one round
// trip carries less than half of it.
//
// https://github.com/torvalds/linux/blob/v6.12/net/ipv4/tcp_input.c (tcp_sndbuf_expand)
// https://github.com/torvalds/linux/blob/v6.12/net/ipv4/tcp_output.c (tcp_cwnd_validate)
func shortBuffer(n *Network) bool {
	// Both are sums over the connections, so this is the rate of one connection.
	rate := float64(n.Acked) / n.BusyTime.Seconds()
	rtt := cmp.Or(n.MinRTT, n.RTT) // a queue lengthens RTT, and means that the buffer suffices
	return 2*rate*rtt.Seconds() > float64(n.SendBuffer) && n.SendBuffer > 0
}

// tooShort reports whether a transfer is below these limits.
func tooShort(sender, receiver []Stage) bool {
	for _, s := range slices.Concat(sender, receiver) {
		if s.Bytes >= minBytes || s.Busy+s.WaitIn+s.WaitOut >= minLifetime {
			return false
		}
	}
	return true
}
