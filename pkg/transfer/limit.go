package transfer

// What can limit a transfer, as LimitedBy names it.
const (
	LimitSource      = "source"
	LimitCompress    = "compression"
	LimitSenderCPU   = "sender's CPU"
	LimitNetwork     = "network"
	LimitWindow      = "receiver's window"
	LimitSendBuffer  = "sender's buffer"
	LimitReceiverCPU = "receiver's CPU"
	LimitExpand      = "decompression"
	LimitTarget      = "target"
)

// minimumShare is the share of a stage's time below which nothing is named: a
// transfer that short or that idle has no bottleneck worth a name.
const minimumShare = 0.05

// LimitedBy names what limits a transfer, from both ends' stages and what the
// kernel says of the sender's connections (nil for a local copy).
//
// Of every link of the chain it takes the share of the time for which that
// link kept its neighbours waiting: the source while the reader waits for it;
// a stage's CPU while it is busy; the target while the writer waits for it.
// The network is the limit while the sender waits to send and the receiver
// waits for data at the same time: were the target slow, the receiver's ring
// would be full and the receiver would wait for that instead. The largest
// share wins. Which part of the network it was, TCP_INFO tells: the time that
// the receiver's window or the sender's buffer held back the connection.
func LimitedBy(sender, receiver []Stage, n *Network) string {
	all := map[string]Stage{}
	for _, st := range append(append([]Stage{}, sender...), receiver...) {
		all[st.Name] = st
	}
	life := func(st Stage) float64 { return float64(st.Busy + st.WaitIn + st.WaitOut) }
	longest := 0.0
	for _, st := range all {
		longest = max(longest, life(st))
	}
	if longest == 0 {
		return ""
	}
	best, share := "", minimumShare
	consider := func(name string, time float64) {
		if time/longest > share {
			best, share = name, time/longest
		}
	}
	consider(LimitTarget, float64(all[StageWrite].WaitOut))
	consider(LimitSource, float64(all[StageRead].WaitIn))
	consider(LimitCompress, float64(all[StageCompress].Busy))
	consider(LimitSenderCPU, float64(all[StageSend].Busy))
	consider(LimitReceiverCPU, float64(all[StageReceive].Busy))
	consider(LimitExpand, float64(all[StageExpand].Busy))
	consider(LimitNetwork, float64(min(all[StageSend].WaitOut, all[StageReceive].WaitIn)))
	if best == LimitNetwork && n != nil && n.BusyTime > 0 {
		switch {
		case n.RwndLimited > n.BusyTime/2:
			return LimitWindow
		case n.SndbufLimited > n.BusyTime/2:
			return LimitSendBuffer
		}
	}
	return best
}
