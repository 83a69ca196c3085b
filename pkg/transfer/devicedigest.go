package transfer

import (
	"context"
	"time"

	"zxfer/pkg/wire"
)

// DigestDevice hashes a device. The Source is closed in any case. sums are
// those of the device's blocks, of which Options.Block says how large they
// are.
//
// progress may be nil; it is called about twice a second and once at the end.
func DigestDevice(ctx context.Context, src BlockSource, opt DeviceOptions, progress func(Progress)) (res Result, sums []BlockSum, err error) {
	opt = opt.filled()
	opt.NoVerify = false // which leaves the digest out
	started := time.Now()
	pool := &blockPool{size: opt.Block}
	s := newScan(src, newGrid(src.Size(), opt.Cut()), pool, opt.workers())
	s.keep = func(_ context.Context, _ int, _ int64, b *wire.Block) error { pool.put(b); return nil }
	s.zeros = func(context.Context, int, int64, int64) error { return nil }
	now := func() Progress {
		life := time.Since(started)
		return Progress{Bytes: s.hash.bytes.Load(), Elapsed: life, Stages: []Stage{s.read.stage(life, true), s.hash.stage(life, true)}}
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w := watcher{now: now, report: progress, stall: opt.Stall, moved: s.hash.bytes.Load, fail: fail,
		stalled: func() error { return stalled(src.Name()+" gave nothing", opt.Stall) }}
	stop := w.start()
	err = s.run(ctx)
	stop()
	if err == nil {
		err = src.Unchanged()
	}
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	res = Result{Progress: now(), Device: &DeviceResult{Size: s.size, Block: int(s.block)}}
	if err != nil {
		return res, nil, bare(err)
	}
	res.Device.SourceDigest = s.digest(s.cut.Root(s.sums))
	if progress != nil {
		progress(res.Progress)
	}
	return res, s.sums, nil
}
