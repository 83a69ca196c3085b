package transfer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/wire"
)

// stage makes a stage out of percents of ten seconds.
func stage(name string, busy, in, out int) transfer.Stage {
	const percent = 100 * time.Millisecond
	return transfer.Stage{Name: name, Busy: time.Duration(busy) * percent, WaitIn: time.Duration(in) * percent, WaitOut: time.Duration(out) * percent}
}

func TestLimitedBy(t *testing.T) {
	t.Parallel()
	type stages = []transfer.Stage
	const read, compress, limit, send = transfer.StageRead, transfer.StageCompress, transfer.StageLimit, transfer.StageSend
	const receive, expand, write = transfer.StageReceive, transfer.StageExpand, transfer.StageWrite
	window := &transfer.Network{BusyTime: time.Second, RwndLimited: 600 * time.Millisecond}
	// As on 1 Gbit/s over 20 ms, with tcp_rmem[2] of 256 KiB and eight connections, and
	// with the default.
	paced := &transfer.Network{Streams: 8, BusyTime: 11584 * time.Millisecond, RwndLimited: 4840 * time.Millisecond, Congestion: "bbr"}
	free := &transfer.Network{Streams: 8, BusyTime: 11 * time.Second, RwndLimited: 500 * time.Millisecond, Congestion: "bbr"}
	buffer := &transfer.Network{BusyTime: time.Second, SndbufLimited: 600 * time.Millisecond}
	// As on 1 Gbit/s over 20 ms, with tcp_wmem[2] of 1 MiB and one connection,
	// and with the default and two, whose queue fills.
	small := &transfer.Network{Streams: 1, BusyTime: time.Second, Acked: 40_600_000, RTT: 20500 * time.Microsecond, SendBuffer: 1 << 20}
	full := &transfer.Network{Streams: 2, BusyTime: 2 * time.Second, Acked: 109_000_000, RTT: 30 * time.Millisecond, SendBuffer: 4 << 20}
	for name, tc := range map[string]struct {
		sender, receiver stages
		network          *transfer.Network
		want             string
	}{
		"nothing known":  {nil, nil, nil, ""},
		"not begun":      {stages{stage(read, 0, 0, 0)}, stages{stage(write, 0, 0, 0)}, nil, ""},
		"source":         {stages{stage(read, 95, 0, 5), stage(send, 5, 90, 5)}, stages{stage(receive, 3, 97, 0), stage(write, 10, 90, 0)}, nil, transfer.LimitSource},
		"target":         {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 2, 93), stage(write, 99, 1, 0)}, window, transfer.LimitTarget},
		"network":        {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitNetwork},
		"window":         {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, window, transfer.LimitWindow},
		"window, bbr":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, paced, transfer.LimitWindow},
		"full path, bbr": {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, free, transfer.LimitNetwork},
		"send buffer":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, buffer, transfer.LimitSendBuffer},
		"small buffer":   {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, small, transfer.LimitSendBuffer},
		"full path":      {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, full, transfer.LimitNetwork},
		"sender cpu":     {stages{stage(read, 5, 0, 95), stage(send, 90, 1, 9)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitSenderCPU},
		"receiver cpu":   {stages{stage(read, 5, 0, 95), stage(send, 9, 1, 90)}, stages{stage(receive, 85, 10, 5), stage(write, 9, 91, 0)}, nil, transfer.LimitReceiverCPU},
		"compress":       {stages{stage(read, 5, 0, 95), stage(compress, 98, 2, 0), stage(send, 2, 90, 8)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitCompress},
		"decompress":     {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 5, 90), stage(expand, 97, 3, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitExpand},
		"bandwidth":      {stages{stage(read, 5, 0, 95), stage(limit, 93, 7, 0), stage(send, 2, 95, 3)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitBandwidth},
		"sender only":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, nil, nil, transfer.LimitNetwork},
		"receiver only":  {nil, stages{stage(receive, 5, 2, 93), stage(write, 99, 1, 0)}, nil, transfer.LimitTarget},
		"local, source":  {stages{stage(read, 90, 0, 10), stage(write, 20, 80, 0)}, stages{stage(read, 90, 0, 10), stage(write, 20, 80, 0)}, nil, transfer.LimitSource},
		"local, target":  {stages{stage(read, 20, 0, 80), stage(write, 95, 5, 0)}, nil, nil, transfer.LimitTarget},
		"even and short": {stages{stage(read, 9, 0, 91), stage(send, 5, 95, 0)}, stages{stage(receive, 5, 95, 0), stage(write, 6, 94, 0)}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, transfer.LimitedBy(tc.sender, tc.receiver, tc.network))
		})
	}
}

// A stream of a few bytes is limited by nothing, unless it takes its time.
func TestShortIsNotLimited(t *testing.T) {
	t.Parallel()
	limit := func(bytes int64, life time.Duration) string {
		return transfer.LimitedBy([]transfer.Stage{{Name: transfer.StageRead, Bytes: bytes, Busy: life}}, nil, nil)
	}
	require.Empty(t, limit(600, 300*time.Millisecond))
	require.Equal(t, transfer.LimitSource, limit(600, 10*time.Second))
	require.Equal(t, transfer.LimitSource, limit(8<<20, 300*time.Millisecond))
}

// limits runs a transfer until what limited it is what was made slow, a few times
// at most: a host that is busy elsewhere holds up any stage for longer than these
// transfers take.
func limits(t *testing.T, want string, run func() (sender, receiver []transfer.Stage, n *transfer.Network)) {
	t.Helper()
	for try := 1; ; try++ {
		sender, receiver, n := run()
		got := transfer.LimitedBy(sender, receiver, n)
		if strings.HasPrefix(got, want) {
			return
		}
		if try == 4 {
			t.Fatalf("limited by %q, expected %q: %+v %+v", got, want, sender, receiver)
		}
	}
}

func TestLimitedByInRealRuns(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	opt := transfer.Options{Block: 64 << 10, Buffer: 256 << 10}
	slowSource := func() *transfertest.Source {
		s := transfertest.NewSource(transfertest.Random(size))
		s.Chunk, s.Pause = 64<<10, 5*time.Millisecond
		return s
	}
	slowSink := func() *memorySink {
		s := newSink()
		s.Pause = 10 * time.Millisecond
		return s
	}
	between := func(t *testing.T, a, b *wire.Link, src transfer.Source, sink transfer.Sink) (sender, receiver []transfer.Stage, n *transfer.Network) {
		o := move(t, a, b, src, sink, opt)
		require.NoError(t, o.sendErr)
		require.NoError(t, o.receiveErr)
		return o.sent.Stages, o.received.Stages, o.sent.Network
	}
	for _, mode := range modes {
		t.Run(string(mode)+"/"+transfer.LimitSource, func(t *testing.T) {
			t.Parallel()
			limits(t, transfer.LimitSource, func() (sender, receiver []transfer.Stage, n *transfer.Network) {
				a, b := transfertest.Links(t, mode, 2, nil)
				return between(t, a, b, slowSource(), newSink())
			})
		})
		t.Run(string(mode)+"/"+transfer.LimitTarget, func(t *testing.T) {
			t.Parallel()
			limits(t, transfer.LimitTarget, func() (sender, receiver []transfer.Stage, n *transfer.Network) {
				a, b := transfertest.Links(t, mode, 2, nil)
				return between(t, a, b, transfertest.NewSource(transfertest.Random(4*size)), slowSink())
			})
		})
	}
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		limits(t, transfer.LimitNetwork, func() (sender, receiver []transfer.Stage, n *transfer.Network) {
			via := transfertest.Proxied(t, func(int) transfertest.Tamper {
				return func(_ int64, p []byte) ([]byte, bool) { time.Sleep(3 * time.Millisecond); return p, false }
			})
			a, b := transfertest.Links(t, wire.Signed, 1, via)
			return between(t, a, b, transfertest.NewSource(transfertest.Random(6*size)), newSink())
		})
	})
	t.Run("spliced, slow target", func(t *testing.T) {
		t.Parallel()
		limits(t, transfer.LimitTarget, func() (sender, receiver []transfer.Stage, n *transfer.Network) {
			a, b := transfertest.Links(t, wire.Plain, 1, nil)
			return between(t, a, b, newPipeSource(t, transfertest.Random(4*size), 1<<20), newPipeSink(t, 0, 5*time.Millisecond))
		})
	})
	for want, slow := range map[string]func() (transfer.Source, transfer.Sink){
		transfer.LimitSource: func() (transfer.Source, transfer.Sink) { return slowSource(), newSink() },
		transfer.LimitTarget: func() (transfer.Source, transfer.Sink) {
			return transfertest.NewSource(transfertest.Random(size)), slowSink()
		},
	} {
		t.Run("local/"+want, func(t *testing.T) {
			t.Parallel()
			limits(t, want, func() (sender, receiver []transfer.Stage, n *transfer.Network) {
				src, sink := slow()
				res, err := transfer.Copy(context.Background(), src, sink, opt, nil)
				require.NoError(t, err)
				return res.Stages, res.Stages, nil
			})
		})
	}
}

// A connection that ended takes what it counted with it: nothing becomes less than none.
func TestSinceWithConnectionsThatEnded(t *testing.T) {
	t.Parallel()
	at := func(n uint64) transfer.Progress {
		d := time.Duration(n)
		return transfer.Progress{Bytes: int64(n), Elapsed: d, Stages: []transfer.Stage{{Name: transfer.StageRead, Bytes: int64(n), Busy: d, WaitIn: d, WaitOut: d}},
			Network: &transfer.Network{Acked: n, BusyTime: d, RwndLimited: d, SndbufLimited: d}}
	}
	require.Equal(t, at(0), at(2).Since(at(5)))
	require.Equal(t, at(3), at(5).Since(at(2)))
}
