package transfer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/wire"
)

// stage makes a stage out of percents of a second.
func stage(name string, busy, in, out int) transfer.Stage {
	return transfer.Stage{Name: name, Busy: time.Duration(busy) * 10 * time.Millisecond,
		WaitIn: time.Duration(in) * 10 * time.Millisecond, WaitOut: time.Duration(out) * 10 * time.Millisecond}
}

func TestLimitedBy(t *testing.T) {
	t.Parallel()
	type stages = []transfer.Stage
	const read, compress, limit, send = transfer.StageRead, transfer.StageCompress, transfer.StageLimit, transfer.StageSend
	const receive, expand, write = transfer.StageReceive, transfer.StageExpand, transfer.StageWrite
	window := &transfer.Network{BusyTime: time.Second, RwndLimited: 600 * time.Millisecond}
	buffer := &transfer.Network{BusyTime: time.Second, SndbufLimited: 600 * time.Millisecond}
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
		"send buffer":    {stages{stage(read, 5, 0, 95), stage(send, 2, 1, 97)}, stages{stage(receive, 5, 95, 0), stage(write, 9, 91, 0)}, buffer, transfer.LimitSendBuffer},
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

func TestLimitedByInRealRuns(t *testing.T) {
	t.Parallel()
	const size = 4 << 20
	opt := transfer.Options{Block: 64 << 10, Buffer: 256 << 10}
	slowSource := func() *transfertest.Source {
		s := transfertest.NewSource(random(size))
		s.Chunk, s.Pause = 64<<10, 5*time.Millisecond
		return s
	}
	slowSink := func() *transfertest.Sink {
		s := newSink()
		s.Pause = 10 * time.Millisecond
		return s
	}
	for _, mode := range modes {
		for want, tc := range map[string]struct {
			src  *transfertest.Source
			sink *transfertest.Sink
		}{
			transfer.LimitSource: {slowSource(), newSink()},
			transfer.LimitTarget: {transfertest.NewSource(random(4 * size)), slowSink()},
		} {
			t.Run(string(mode)+"/"+want, func(t *testing.T) {
				t.Parallel()
				a, b := links(t, mode, 2, nil)
				o := move(t, a, b, tc.src, tc.sink, opt)
				require.NoError(t, o.sendErr)
				require.NoError(t, o.receiveErr)
				require.Equal(t, want, transfer.LimitedBy(o.sent.Stages, o.received.Stages, o.sent.Network), "%+v %+v", o.sent.Stages, o.received.Stages)
			})
		}
	}
	t.Run("network", func(t *testing.T) {
		t.Parallel()
		via := transfertest.Proxied(t, func(int) transfertest.Tamper {
			return func(_ int64, p []byte) ([]byte, bool) { time.Sleep(3 * time.Millisecond); return p, false }
		})
		a, b := links(t, wire.Signed, 1, via)
		o := move(t, a, b, transfertest.NewSource(random(6*size)), newSink(), opt)
		require.NoError(t, o.sendErr)
		require.Contains(t, transfer.LimitedBy(o.sent.Stages, o.received.Stages, o.sent.Network), transfer.LimitNetwork, "%+v %+v", o.sent.Stages, o.received.Stages)
	})
	t.Run("spliced, slow target", func(t *testing.T) {
		t.Parallel()
		a, b := links(t, wire.Plain, 1, nil)
		o := move(t, a, b, newPipeSource(t, random(4*size), 1<<20), newPipeSink(t, 0, 5*time.Millisecond), opt)
		require.NoError(t, o.sendErr)
		require.Equal(t, transfer.LimitTarget, transfer.LimitedBy(o.sent.Stages, o.received.Stages, o.sent.Network), "%+v %+v", o.sent.Stages, o.received.Stages)
	})
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		res, err := transfer.Copy(context.Background(), slowSource(), newSink(), opt, nil)
		require.NoError(t, err)
		require.Equal(t, transfer.LimitSource, transfer.LimitedBy(res.Stages, res.Stages, nil))
		res, err = transfer.Copy(context.Background(), transfertest.NewSource(random(size)), slowSink(), opt, nil)
		require.NoError(t, err)
		require.Equal(t, transfer.LimitTarget, transfer.LimitedBy(res.Stages, res.Stages, nil))
	})
}
