package connect

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
)

// stage returns a stage that lived for life seconds and was busy for some of them.
func stage(name string, life, busy int) transfer.Stage {
	return transfer.Stage{Name: name, Busy: time.Duration(busy) * time.Second, WaitIn: time.Duration(life-busy) * time.Second}
}

// TestBottleneckOfLastSeconds expects that the bottleneck and the rate cover only the last seconds.
// An hour of a slow source must not affect them.
func TestBottleneckOfLastSeconds(t *testing.T) {
	t.Parallel()
	var seen Progress
	v := &monitor{limit: func(limit string) string { return limit }, report: func(p Progress) { seen = p }}
	v.sent(transfer.Progress{Stages: []transfer.Stage{stage(transfer.StageRead, 3600, 3500)}})
	v.received(transfer.Progress{Bytes: 1000, Stages: []transfer.Stage{stage(transfer.StageWrite, 3600, 100)}})
	require.Equal(t, transfer.LimitSource, seen.LimitedBy, "initially the whole time")
	time.Sleep(2 * time.Millisecond)
	v.sent(transfer.Progress{Stages: []transfer.Stage{stage(transfer.StageRead, 3604, 3500)}})
	v.received(transfer.Progress{Bytes: 1400, Stages: []transfer.Stage{stage(transfer.StageWrite, 3604, 104)}})
	require.Equal(t, transfer.LimitTarget, seen.LimitedBy)
	require.Positive(t, seen.Rate)
}

// TestBottleneckOfBusyProcessors expects that if a host has no idle processor, its processors are
// the bottleneck, unless a bandwidth limit or the network is.
func TestBottleneckOfBusyProcessors(t *testing.T) {
	t.Parallel()
	moment := func(used time.Duration, stages ...transfer.Stage) transfer.Progress {
		return transfer.Progress{Elapsed: 10 * time.Second, Processors: 2, Used: used, Stages: stages}
	}
	const spare, none = 15 * time.Second, 20 * time.Second
	source, bandwidth := stage(transfer.StageRead, 10, 9), stage(transfer.StageLimit, 10, 9)
	send := transfer.Stage{Name: transfer.StageSend, WaitOut: 10 * time.Second}
	for name, c := range map[string]struct {
		crossing  carrier
		sender    transfer.Stage
		near, far time.Duration
		want      string
	}{
		"one idle":       {tcpCarrier{}, source, spare, spare, transfer.LimitSource},
		"the sender's":   {tcpCarrier{}, source, none, none, transfer.LimitSenderCPU},
		"the receiver's": {tcpCarrier{}, source, spare, none, transfer.LimitReceiverCPU},
		"unknown host":   {tcpCarrier{}, source, 0, 0, transfer.LimitSource},
		"a limit":        {tcpCarrier{}, bandwidth, none, none, transfer.LimitBandwidth},
		"a network":      {tcpCarrier{}, send, none, none, transfer.LimitNetwork},
		"ssh":            {sshCarrier{}, send, none, spare, transfer.LimitSenderCPU},
		"ssh or network": {sshCarrier{}, send, spare, spare, LimitShell},
	} {
		v := &monitor{limit: func(limit string) string { return c.crossing.limit(nil, limit) }}
		require.Equal(t, c.want, v.limitedBy(moment(c.near, c.sender), moment(c.far)), name)
	}
	later := moment(none).Since(transfer.Progress{Elapsed: 5 * time.Second, Used: 10 * time.Second})
	require.InDelta(t, 2, later.Busy(), 1e-9)
}
