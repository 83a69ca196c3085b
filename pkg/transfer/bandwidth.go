package transfer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"zxfer/pkg/transport/tcp"
)

// Bandwidth limits a transfer with a token bucket, which other streams may share. nil means no limit.
type Bandwidth struct {
	bucket *bucket
	meter  meter
}

// NewBandwidth returns the limit of o, or nil. It needs one timer for each goroutine that
// waits.
func NewBandwidth(o Options, watches WaitTimers) *Bandwidth {
	if o.BandLimit <= 0 {
		return nil
	}
	b := &Bandwidth{bucket: o.bucket}
	if b.bucket == nil {
		b.bucket = &bucket{}
		b.bucket.limit(o.BandLimit)
	}
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
	for n > 0 { // a block may exceed the burst
		tokens := b.bucket.tokens.Load()
		part := min(n, tokens.Burst())
		if err := tokens.WaitN(ctx, part); err != nil {
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

// bucket holds the tokens of one stream, or of streams that share a limit.
type bucket struct {
	tokens  atomic.Pointer[rate.Limiter]
	streams int // that share it; guarded by Limits.mu
}

// limit sets the bytes per second. A wait that has started keeps the old limit. The burst is a
// twentieth of a second: with less, the time of writing a large block would be lost.
func (b *bucket) limit(bytesPerSecond int64) {
	if old := b.tokens.Load(); old != nil && old.Limit() == rate.Limit(bytesPerSecond) {
		return
	}
	burst := Options{Block: tcp.MaxRaw, BandLimit: bytesPerSecond}.limitedBlock()
	tokens := rate.NewLimiter(rate.Limit(bytesPerSecond), burst)
	tokens.AllowN(time.Now(), burst) // start empty, or short streams exceed the limit
	b.tokens.Store(tokens)
}

// Limits holds the token buckets that running streams share. The zero value is ready to use.
type Limits struct {
	mu      sync.Mutex
	buckets map[uint64]*bucket // by Options.LimitID
}

// Share makes a stream with the options share the bucket of the running streams with the same
// LimitID. Its limit becomes the limit of all of them. Call leave after the stream has ended: the
// last stream removes the bucket.
func (l *Limits) Share(o *Options) (leave func()) {
	id := o.LimitID
	if id == 0 || o.BandLimit <= 0 {
		return func() {}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[id]
	if b == nil {
		b = &bucket{}
		if l.buckets == nil {
			l.buckets = map[uint64]*bucket{}
		}
		l.buckets[id] = b
	}
	b.streams++
	b.limit(o.BandLimit)
	o.bucket = b
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if b.streams--; b.streams == 0 {
			delete(l.buckets, id)
		}
	}
}
