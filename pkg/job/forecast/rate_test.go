package forecast

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
)

func TestRate(t *testing.T) {
	t.Parallel()
	read := probe.Ceiling{ID: probe.SourceRead, Host: "local", BytesPerSecond: 400e6, CPU: 1}
	link := probe.Ceiling{ID: Link, Host: "local", Peer: "beta", BytesPerSecond: 300e6, CPU: 1, PeerCPU: 2, Limit: transfer.LimitNetwork}
	write := probe.Ceiling{ID: probe.TargetWrite, Host: "beta", BytesPerSecond: 200e6, CPU: 1}
	eight := func(boot string) kernel { return kernel{CPUs: 8, Boot: boot} }
	tests := []struct {
		name      string
		ceilings  []probe.Ceiling
		a, b      kernel
		bandLimit int64
		others    map[string]float64
		rate      uint64
		limit     string
		host      string
		ceiling   string
	}{
		{"the slowest stage", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 0, nil, 200e6, transfer.LimitTarget, "beta", probe.TargetWrite},
		{"other measurements are ignored", []probe.Ceiling{{ID: probe.Memory, BytesPerSecond: 1}, {ID: "link-back", BytesPerSecond: 2}, read}, eight("1"), eight("2"), 0, nil, 400e6, transfer.LimitSource, "local", probe.SourceRead},
		{"unmeasured stages are ignored", []probe.Ceiling{link, {ID: probe.TargetWrite, Host: "beta", Skipped: "refused"}}, eight("1"), eight("2"), 0, nil, 300e6, transfer.LimitNetwork, "local", Link},
		{"a link limited by the remote processors", []probe.Ceiling{{ID: Link, Host: "local", Peer: "beta", BytesPerSecond: 300e6, CPU: 1, PeerCPU: 1, Limit: transfer.LimitReceiverCPU}},
			eight("1"), eight("2"), 0, nil, 300e6, transfer.LimitReceiverCPU, "beta", Link},
		{"a requested limit", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 50e6, nil, 50e6, transfer.LimitBandwidth, "", ""},
		{"a limit above the rate", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 500e6, nil, 200e6, transfer.LimitTarget, "beta", probe.TargetWrite},
		// 2/300e6 + 1/200e6 s per byte on the receiver's only CPU.
		{"a receiver with one processor", []probe.Ceiling{read, link, write}, eight("1"), kernel{CPUs: 1, Boot: "2"}, 0, nil, 85714285, transfer.LimitReceiverCPU, "beta", ""},
		// 1/400e6 + 1/300e6 s per byte on the sender's only CPU.
		{"a sender with one processor", []probe.Ceiling{read, link, write}, kernel{CPUs: 1, Boot: "1"}, eight("2"), 0, nil, 171428571, transfer.LimitSenderCPU, "local", ""},
		// 1/50e6 + 1/400e6 s per byte: the link is still the bottleneck.
		{"a processor mostly used by the link", []probe.Ceiling{read, {ID: Link, Host: "local", Peer: "beta", BytesPerSecond: 50e6, CPU: 1, Limit: transfer.LimitNetwork}},
			kernel{CPUs: 1, Boot: "1"}, eight("2"), 0, nil, 44444444, transfer.LimitNetwork, "local", Link},
		// Both hosts count the CPU use of a link, but the forecast must count it once.
		{"two containers of one machine", []probe.Ceiling{read, link, write}, kernel{CPUs: 1, Boot: "1"}, kernel{CPUs: 1, Boot: "1"}, 0, nil, 70588235, transfer.LimitSenderCPU, "local", ""},
		// Both stages took half a CPU, and half a CPU is free.
		{"a busy machine", []probe.Ceiling{{ID: probe.SourceRead, Host: "local", BytesPerSecond: 100e6, CPU: 8}, {ID: Link, Host: "local", Peer: "beta", BytesPerSecond: 100e6, CPU: 8, Limit: transfer.LimitNetwork}},
			eight("1"), eight("2"), 0, map[string]float64{"local": 7.5}, 50e6, transfer.LimitSenderCPU, "local", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := Rate(tt.ceilings, 1e9, tt.bandLimit, machinesOf(tt.a, tt.b, tt.others))
			require.NotNil(t, e)
			require.InDelta(t, tt.rate, e.BytesPerSecond, 1)
			require.Equal(t, []string{tt.limit, tt.host}, []string{e.LimitedBy, e.Host})
			require.Equal(t, tt.ceiling, e.Ceiling)
			require.Equal(t, tt.ceiling != "", slices.ContainsFunc(tt.ceilings, e.IsLimit), "one measurement is the bottleneck, or none")
			require.InEpsilon(t, 1e9/float64(tt.rate), e.Seconds, 1e-6)
		})
	}
	on := func() Machines { return machinesOf(eight("1"), eight("2"), nil) }
	short := write
	short.Latency = 0.5
	e := Rate([]probe.Ceiling{short}, 300e6, 0, on())
	require.InDelta(t, 3, e.Seconds, 1e-9, "the latency of a short receive counts")
	require.InDelta(t, 100e6, e.BytesPerSecond, 1)
	require.Nil(t, Rate(nil, 1, 0, on()))
	e = Rate([]probe.Ceiling{link}, 1e9, 0, on())
	require.True(t, e.IsLimit(link))
	require.True(t, (&Expected{Ceiling: Link, Host: "beta"}).IsLimit(link), "the remote end of a link")
	require.False(t, e.IsLimit(write))
}

// kernel holds the facts of one end.
type kernel struct {
	CPUs float64
	Boot string
}

// machinesOf returns the machines of the local host and beta.
func machinesOf(a, b kernel, others map[string]float64) Machines {
	return NewMachines(Machine{Host: "local", CPUs: a.CPUs, OtherLoad: others["local"]}, Machine{Host: "beta", CPUs: b.CPUs, OtherLoad: others["beta"]}, a.Boot == b.Boot)
}
