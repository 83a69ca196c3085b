package transfer

import (
	"context"
	"errors"
	"runtime"
	"time"

	"golang.org/x/time/rate"

	"zxfer/pkg/transport/tcp"
)

// Options configure a transfer. The zero value is usable. Both ends need the same Block.
type Options struct {
	Buffer          int64  `json:"buffer,omitempty"`   // ring size in bytes on each side; 0 = DefaultBuffer
	Block           int    `json:"block,omitempty"`    // bytes per frame; 0 = DefaultBlock
	BandLimit       int64  `json:"bwlimit,omitempty"`  // bytes per second over all connections; 0 = no limit
	Compress        string `json:"compress,omitempty"` // "", "off", "auto", "zstd", "zstd:N"
	CompressThreads int    `json:"compress_threads,omitempty"`
	// Stall is how long a transfer may make no progress; 0 = DefaultStall.
	Stall time.Duration `json:"stall,omitempty"`
}

// Defaults for Options.
const (
	DefaultBuffer = 256 << 20
	DefaultBlock  = 1 << 20
	DefaultStall  = 10 * time.Minute
)

// MinBlock is the smallest frame size in bytes. Only a frame that the source cannot fill is
// smaller.
const MinBlock = 16 << 10

// SmallBlock is the frame size in bytes for streams of about that size.
const SmallBlock = 4 * MinBlock

// Small reports whether the options are for a stream of about one small frame.
func (o Options) Small() bool { return o.Block > 0 && o.Block <= SmallBlock }

// Filled returns the options with defaults and bounds applied.
func (o Options) Filled() Options {
	if o.Block <= 0 {
		o.Block = DefaultBlock
	}
	o.Block = min(max(o.Block, MinBlock), tcp.MaxRaw)
	if o.Buffer <= 0 {
		o.Buffer = DefaultBuffer
	}
	if o.Stall <= 0 {
		o.Stall = DefaultStall
	}
	return o
}

// limitedBlock returns the frame size. A low bandwidth limit reduces it to a twentieth of a
// second.
func (o Options) limitedBlock() int {
	if o.BandLimit <= 0 {
		return o.Block
	}
	return int(min(int64(o.Block), max(o.BandLimit/20, MinBlock)))
}

// threads returns the number of goroutines that compress or decompress.
func (o Options) threads() int {
	if o.CompressThreads > 0 {
		return o.CompressThreads
	}
	return runtime.NumCPU()
}

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
