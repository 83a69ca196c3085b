package job

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
)

func TestExpect(t *testing.T) {
	t.Parallel()
	read := probe.Ceiling{ID: probe.SourceRead, Host: "local", BytesPerSecond: 400e6, CPU: 1}
	link := probe.Ceiling{ID: linkOut, Host: "local", Peer: "beta", BytesPerSecond: 300e6, CPU: 1, PeerCPU: 2, Limit: transfer.LimitNetwork}
	write := probe.Ceiling{ID: probe.TargetWrite, Host: "beta", BytesPerSecond: 200e6, CPU: 1}
	eight := func(boot string) hosts.Facts { return hosts.Facts{CPUs: 8, Boot: boot} }
	tests := []struct {
		name      string
		ceilings  []probe.Ceiling
		a, b      hosts.Facts
		bandLimit int64
		others    map[string]float64
		rate      uint64
		limit     string
		host      string
		ceiling   string
	}{
		{"the slowest stage", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 0, nil, 200e6, transfer.LimitTarget, "beta", probe.TargetWrite},
		{"others are of no account", []probe.Ceiling{{ID: probe.Memory, BytesPerSecond: 1}, {ID: linkBack, BytesPerSecond: 2}, read}, eight("1"), eight("2"), 0, nil, 400e6, transfer.LimitSource, "local", probe.SourceRead},
		{"what was not measured, too", []probe.Ceiling{link, {ID: probe.TargetWrite, Host: "beta", Skipped: "refused"}}, eight("1"), eight("2"), 0, nil, 300e6, transfer.LimitNetwork, "local", linkOut},
		{"a link that the other end's processors limit", []probe.Ceiling{{ID: linkOut, Host: "local", Peer: "beta", BytesPerSecond: 300e6, CPU: 1, PeerCPU: 1, Limit: transfer.LimitReceiverCPU}},
			eight("1"), eight("2"), 0, nil, 300e6, transfer.LimitReceiverCPU, "beta", linkOut},
		{"a limit that was asked for", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 50e6, nil, 50e6, transfer.LimitBandwidth, "", ""},
		{"a limit beyond", []probe.Ceiling{read, link, write}, eight("1"), eight("2"), 500e6, nil, 200e6, transfer.LimitTarget, "beta", probe.TargetWrite},
		// 2/300e6 + 1/200e6 s per byte on the receiver's only CPU.
		{"a receiver with one processor", []probe.Ceiling{read, link, write}, eight("1"), hosts.Facts{CPUs: 1, Boot: "2"}, 0, nil, 85714285, transfer.LimitReceiverCPU, "beta", ""},
		// 1/400e6 + 1/300e6 s per byte on the sender's only CPU.
		{"a sender with one", []probe.Ceiling{read, link, write}, hosts.Facts{CPUs: 1, Boot: "1"}, eight("2"), 0, nil, 171428571, transfer.LimitSenderCPU, "local", ""},
		// 1/50e6 + 1/400e6 s per byte: the link is still the bottleneck.
		{"a processor that is nearly all the link's", []probe.Ceiling{read, {ID: linkOut, Host: "local", Peer: "beta", BytesPerSecond: 50e6, CPU: 1, Limit: transfer.LimitNetwork}},
			hosts.Facts{CPUs: 1, Boot: "1"}, eight("2"), 0, nil, 44444444, transfer.LimitNetwork, "local", linkOut},
		// Both ends count the CPU use of a link, but it must count once.
		{"two containers of one machine", []probe.Ceiling{read, link, write}, hosts.Facts{CPUs: 1, Boot: "1"}, hosts.Facts{CPUs: 1, Boot: "1"}, 0, nil, 70588235, transfer.LimitSenderCPU, "local", ""},
		// Both stages took half a CPU, and half a CPU is free.
		{"a busy machine", []probe.Ceiling{{ID: probe.SourceRead, Host: "local", BytesPerSecond: 100e6, CPU: 8}, {ID: linkOut, Host: "local", Peer: "beta", BytesPerSecond: 100e6, CPU: 8, Limit: transfer.LimitNetwork}},
			eight("1"), eight("2"), 0, map[string]float64{"local": 7.5}, 50e6, transfer.LimitSenderCPU, "local", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &measurer{ends: testEnds(tt.a, tt.b), otherLoad: tt.others}
			e := expectedRate(tt.ceilings, 1e9, tt.bandLimit, m.machines())
			require.NotNil(t, e)
			require.InDelta(t, tt.rate, e.BytesPerSecond, 1)
			require.Equal(t, []string{tt.limit, tt.host}, []string{e.LimitedBy, e.Host})
			require.Equal(t, tt.ceiling, e.Ceiling)
			require.Equal(t, tt.ceiling != "", slices.ContainsFunc(tt.ceilings, e.Names), "a part is the limit, or none")
			require.InEpsilon(t, 1e9/float64(tt.rate), e.Seconds, 1e-6)
		})
	}
	m := &measurer{ends: testEnds(eight("1"), eight("2"))}
	short := write
	short.Latency = 0.5
	e := expectedRate([]probe.Ceiling{short}, 300e6, 0, m.machines())
	require.InDelta(t, 3, e.Seconds, 1e-9, "of a short stream what a receive waits for counts")
	require.InDelta(t, 100e6, e.BytesPerSecond, 1)
	require.Nil(t, expectedRate(nil, 1, 0, m.machines()))

	m.ceilings = []probe.Ceiling{link, {ID: probe.TargetWrite, Host: "beta", Skipped: "refused"}}
	require.Nil(t, (&measurer{ends: m.ends}).expectedRate(1, 0))
	partly := m.expectedRate(1e9, 0)
	require.Equal(t, []string{"source", "target"}, partly.Unmeasured, "either may be slower")
	require.True(t, partly.Names(link))
	require.True(t, (&Expected{Ceiling: linkOut, Host: "beta"}).Names(link), "a link's other end")
	require.False(t, partly.Names(write))
}

// testEnds returns the local host and beta with these facts.
func testEnds(a, b hosts.Facts) *ends {
	return &ends{source: end{Conn: host(nil, ""), facts: a}, target: end{Conn: host(nil, "beta"), facts: b}}
}
