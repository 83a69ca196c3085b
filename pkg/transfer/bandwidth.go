package transfer

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"

	"zxfer/pkg/transport/tcp"
)

// Bandwidth limits all connections of a transfer with one token bucket. nil means no limit.
type Bandwidth struct {
	bucket *rate.Limiter
	meter  meter
}

// NewBandwidth returns the limit of o, or nil. It needs one timer for each goroutine that
// waits.
func NewBandwidth(o Options, watches WaitTimers) *Bandwidth {
	if o.BandLimit <= 0 {
		return nil
	}
	burst := o.limitedBlock()
	b := &Bandwidth{bucket: rate.NewLimiter(rate.Limit(o.BandLimit), burst)}
	b.bucket.AllowN(time.Now(), burst) // start empty, or short streams exceed the limit
	b.meter.name = StageLimit
	b.meter.waitIn = func(life time.Duration) time.Duration { return life - min(life, watches.Mean()) }
	return b
}

// Wait waits until n bytes may pass.
func (b *Bandwidth) Wait(ctx context.Context, n int, w *tcp.WaitTimer) error {
	if b == nil {
		return nil
	}
	w.Start()
	defer w.Stop()
	b.meter.bytes.Add(int64(n))
	for n > 0 { // a device block may exceed the burst
		part := min(n, b.bucket.Burst())
		if err := b.bucket.WaitN(ctx, part); err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		n -= part
	}
	return nil
}

// Stages returns the stage of the limit, or nil without a limit.
func (b *Bandwidth) Stages(life time.Duration) []Stage {
	if b == nil {
		return nil
	}
	return []Stage{b.meter.stage(life)}
}

// limitedBlock returns the frame size. A low bandwidth limit reduces it to a twentieth of a
// second.
func (o Options) limitedBlock() int {
	if o.BandLimit <= 0 {
		return o.Block
	}
	return int(min(int64(o.Block), max(o.BandLimit/20, MinBlock)))
}
