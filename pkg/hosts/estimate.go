package hosts

import (
	"context"

	"zxfer/pkg/budget"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Estimate runs OpEstimate, in several requests if there are too many streams for one.
func Estimate(ctx context.Context, on Runner, streams []zfs.SendSpec) (sizes []uint64, err error) {
	for _, some := range splitStreams(streams) {
		part, err := Call(ctx, on, OpEstimate, some)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, part...)
	}
	return sizes, nil
}

// splitStreams splits streams into requests that an agent accepts.
func splitStreams(streams []zfs.SendSpec) [][]zfs.SendSpec {
	const most = 4 << 20
	var out [][]zfs.SendSpec
	first, cost := 0, 0
	for i, s := range streams {
		own := 1<<10 + len(s.Token)
		for _, t := range s.Through {
			own += len(t) + 2*budget.CommaCost
		}
		if i > first && cost+own > most {
			out, first, cost = append(out, streams[first:i]), i, 0
		}
		cost += own
	}
	return append(out, streams[first:])
}

// Estimate returns the sizes of streams in bytes. For a single stream, the command line is faster
// than the start of the helper.
func (l *Local) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	if len(streams) == 1 && !l.started.Load() {
		return l.direct.Estimate(ctx, streams)
	}
	err = l.with(ctx, func(ctx context.Context, b cli.Backend) error {
		sizes, err = b.Estimate(ctx, streams)
		return err
	})
	return sizes, err
}
