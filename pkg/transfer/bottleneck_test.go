package transfer_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

// stage returns a stage with times in percent of ten seconds.
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
	// As with 1 Gbit/s over 20 ms: tcp_rmem[2] of 256 KiB and eight connections, and the
	// default.
	paced := &transfer.Network{Streams: 8, BusyTime: 11584 * time.Millisecond, RwndLimited: 4840 * time.Millisecond, Congestion: "bbr"}
	free := &transfer.Network{Streams: 8, BusyTime: 11 * time.Second, RwndLimited: 500 * time.Millisecond, Congestion: "bbr"}
	buffer := &transfer.Network{BusyTime: time.Second, SndbufLimited: 600 * time.Millisecond}
	// As with 1 Gbit/s over 20 ms: tcp_wmem[2] of 1 MiB and one connection, and the default
	// with two connections, whose queue fills.
	small := &transfer.Network{Streams: 1, BusyTime: time.Second, Acked: 40_600_000, RTT: 20500 * time.Microsecond, SendBuffer: 1 << 20}
	full := &transfer.Network{Streams: 2, BusyTime: 2 * time.Second, Acked: 109_000_000, RTT: 30 * time.Millisecond, SendBuffer: 4 << 20}
	// As with 400 Mbit/s over 100 ms, and a queue that holds seconds.
	queue := &transfer.Network{Streams: 8, BusyTime: 75570 * time.Millisecond, Acked: 419_430_400,
		RTT: 489567 * time.Microsecond, MinRTT: 100543 * time.Microsecond, SendBuffer: 4 << 20}
	for name, tc := range map[string]struct {
		sender, receiver stages
		network          *transfer.Network
		want             string
	}{
		"nothing known":  {nil, nil, nil, ""},
		"not started":    {stages{stage(read, 0, 0, 0)}, stages{stage(write, 0, 0, 0)}, nil, ""},
		"source":         {stages{stage(read, 95, 0, 5), stage(send, 5, 90, 5)}, stages{stage(receive, 3, 97, 0), stage(write, 10, 90, 0)}, nil, transfer.LimitSource},
		"target":         {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 2, 93), stage(write, 99, 1, 0)}, window, transfer.LimitTarget},
		"network":        {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, nil, transfer.LimitNetwork},
		"window":         {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, window, transfer.LimitWindow},
		"window, bbr":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, paced, transfer.LimitWindow},
		"full path, bbr": {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, free, transfer.LimitNetwork},
		"send buffer":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, buffer, transfer.LimitSendBuffer},
		"small buffer":   {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, small, transfer.LimitSendBuffer},
		"full path":      {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, full, transfer.LimitNetwork},
		"full queue":     {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, queue, transfer.LimitNetwork},
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

// TestShortStreamHasNoBottleneck expects that a stream of a few bytes has no bottleneck unless it is slow.
func TestShortStreamHasNoBottleneck(t *testing.T) {
	t.Parallel()
	limit := func(bytes int64, life time.Duration) string {
		return transfer.LimitedBy([]transfer.Stage{{Name: transfer.StageRead, Bytes: bytes, Busy: life}}, nil, nil)
	}
	require.Empty(t, limit(600, 300*time.Millisecond))
	require.Equal(t, transfer.LimitSource, limit(600, 10*time.Second))
	require.Equal(t, transfer.LimitSource, limit(8<<20, 300*time.Millisecond))
}

// TestMetersNameBottleneck holds one part of a transfer between two hosts, and expects this part as
// the bottleneck.
func TestMetersNameBottleneck(t *testing.T) {
	t.Parallel()
	opt := transfer.Options{Block: 64 << 10, Buffer: 256 << 10}
	between := func(t *testing.T, want string, h *hold, a, b *tcp.Link, src transfer.Source, sink transfer.Sink) {
		t.Helper()
		requireLimit(t, want, h, func(sender, receiver func(transfer.Progress)) {
			done := make(chan error, 1)
			go func() {
				_, err := transfer.Receive(context.Background(), b, sink, opt, receiver)
				done <- err
			}()
			_, err := transfer.Send(context.Background(), src, a, opt, sender)
			require.NoError(t, err)
			require.NoError(t, <-done)
		})
	}
	for _, mode := range modes {
		t.Run(string(mode)+"/"+transfer.LimitSource, func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 2, nil)
			h := newHold(t)
			src := &heldSource{Source: transfertest.NewSource(transfertest.Random(4 << 20)), hold: h, after: heldAfter}
			between(t, transfer.LimitSource, h, a, b, src, newSink())
		})
		t.Run(string(mode)+"/"+transfer.LimitTarget, func(t *testing.T) {
			t.Parallel()
			a, b := transfertest.Links(t, mode, 2, nil)
			h := newHold(t)
			between(t, transfer.LimitTarget, h, a, b, endlessSource{h}, newHeldSink(h))
		})
	}
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		h := newHold(t)
		via := transfertest.Proxied(t, func(int) transfertest.Tamper {
			return func(at int64, p []byte) ([]byte, bool) {
				if at > heldAfter {
					h.wait()
				}
				return p, false
			}
		})
		a, b := transfertest.Links(t, tcp.Signed, 1, via)
		sink := newSink()
		sink.Drop = true
		between(t, transfer.LimitNetwork, h, a, b, endlessSource{h}, sink)
	})
	t.Run("spliced, target", func(t *testing.T) {
		t.Parallel()
		a, b := transfertest.Links(t, tcp.Plain, 1, nil)
		h := newHold(t)
		between(t, transfer.LimitTarget, h, a, b, newPipeSource(t, make([]byte, 64<<20), 1<<20), newPipeSink(t, 0, func(*pipeSink) { h.wait() }))
	})
}

// TestMetersOfACopy copies within one host on a simulated clock, which only the source, the
// sink and the bandwidth limit advance.
func TestMetersOfACopy(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	for want, c := range map[string]struct {
		source, sink time.Duration // for each 64 KiB
		limit        int64         // bytes per second
		took         time.Duration
	}{
		transfer.LimitSource:    {source: 5 * time.Millisecond, sink: time.Millisecond, took: 64*5*time.Millisecond + 6*time.Millisecond},
		transfer.LimitTarget:    {source: time.Millisecond, sink: 10 * time.Millisecond, took: time.Millisecond + 65*10*time.Millisecond},
		transfer.LimitBandwidth: {source: time.Millisecond, limit: 2 << 20, took: 2 * time.Second},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				src, sink := transfertest.NewSource(transfertest.Random(size)), newSink()
				src.Chunk, src.Pause, sink.Pause = 64<<10, c.source, c.sink
				res, err := transfer.Copy(context.Background(), src, sink, transfer.Options{Block: 64 << 10, Buffer: 256 << 10, BandLimit: c.limit}, nil)
				require.NoError(t, err)
				require.Equal(t, want, transfer.LimitedBy(res.Stages, res.Stages, nil))
				require.Equal(t, c.took, res.Elapsed)
				for _, s := range res.Stages {
					require.Equal(t, res.Elapsed, s.Busy+s.WaitIn+s.WaitOut, s.Name)
				}
			})
		})
	}
}

// TestSinceWithEndedConnections expects that differences are not negative if a connection ended
// and its counts disappeared.
func TestSinceWithEndedConnections(t *testing.T) {
	t.Parallel()
	at := func(n uint64) transfer.Progress {
		d := time.Duration(n)
		return transfer.Progress{Bytes: int64(n), Elapsed: d, Stages: []transfer.Stage{{Name: transfer.StageRead, Bytes: int64(n), Busy: d, WaitIn: d, WaitOut: d}},
			Network: &transfer.Network{Acked: n, BusyTime: d, RwndLimited: d, SndbufLimited: d}}
	}
	require.Equal(t, at(0), at(2).Since(at(5)))
	require.Equal(t, at(3), at(5).Since(at(2)))
}
