package transfer

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/wire"
)

// Adaptive compression: every frame is an independent zstd frame, so that
// several cores compress at once, and the level may change from one to the
// next.
const (
	// worthwhile is the share of a frame that compression must save.
	worthwhile = 0.05
	// hopelessAfter frames in a row that save less, compression pauses.
	hopelessAfter = 4
	// probeFirst and probeLongest are the bytes that pass between two tries
	// to compress while it pauses; the distance doubles from one to the other.
	probeFirst   = 64 << 20
	probeLongest = 256 << 20
)

func (o Options) compresses() bool { return o.Compress != "" && o.Compress != "off" }

// levels are the encoders of one stream, the fastest first.
var levels = []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault, zstd.SpeedBetterCompression}

// compressor compresses frames and learns from them.
type compressor struct {
	encoders []*zstd.Encoder // by level; one when the level is fixed
	level    atomic.Int32
	adaptive bool

	mu       sync.Mutex
	hopeless int   // frames in a row that saved too little
	skip     int64 // bytes to pass uncompressed before the next try
	distance int64
}

// newCompressor understands "auto", "zstd" and "zstd:LEVEL" (zstd's own 1–22).
func newCompressor(mode string) (*compressor, error) {
	c := &compressor{adaptive: mode == "auto", distance: probeFirst}
	use := levels
	if !c.adaptive {
		name, text, given := strings.Cut(mode, ":")
		level := 3
		if given {
			var err error
			if level, err = strconv.Atoi(text); err != nil {
				return nil, fmt.Errorf("compression %q: %q is no level", mode, text)
			}
		}
		if name != "zstd" {
			return nil, fmt.Errorf("unknown compression %q", mode)
		}
		use = []zstd.EncoderLevel{zstd.EncoderLevelFromZstd(level)}
	}
	for _, l := range use {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		c.encoders = append(c.encoders, e)
	}
	return c, nil
}

// adapt steps the level by the queues around the compressors: up while
// finished frames wait for the network, down as soon as none do.
func (c *compressor) adapt(networkWaits bool) {
	if !c.adaptive {
		return
	}
	l := c.level.Load()
	switch {
	case networkWaits:
		c.level.Store(0)
	case int(l) < len(c.encoders)-1:
		c.level.Store(l + 1)
	}
}

// try tells whether a frame of n bytes should be compressed.
func (c *compressor) try(n int) bool {
	if !c.adaptive {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skip > 0 {
		c.skip -= int64(n)
		return false
	}
	return true
}

// learn takes note of what compressing n bytes to m brought.
func (c *compressor) learn(n, m int) {
	if !c.adaptive {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if float64(n-m) >= worthwhile*float64(n) {
		c.hopeless, c.distance = 0, probeFirst
		return
	}
	if c.hopeless++; c.hopeless >= hopelessAfter {
		c.skip = c.distance
		c.distance = min(2*c.distance, probeLongest)
		c.hopeless = hopelessAfter - 1 // one more failure pauses again
	}
}

// compress returns a frame with f's contents compressed, or f itself where
// that saves too little.
func (c *compressor) compress(f, spare *wire.Frame) (out, unused *wire.Frame) {
	n := len(f.Payload())
	if !c.try(n) {
		return f, spare
	}
	packed := c.encoders[int(c.level.Load())%len(c.encoders)].EncodeAll(f.Payload(), spare.Room()[:0])
	c.learn(n, len(packed))
	if float64(n-len(packed)) < worthwhile*float64(n) || len(packed) > len(spare.Room()) {
		return f, spare
	}
	spare.SetLen(len(packed))
	spare.Kind, spare.Seq, spare.Raw, spare.Flags = f.Kind, f.Seq, f.Raw, wire.Compressed
	return spare, f
}

// startCompression puts compressing workers between the reader's queue and a
// new one, which the senders take from. It returns how many report to errs.
func (s *sending) startCompression(errs chan<- error) (workers int, err error) {
	c, err := newCompressor(s.opt.Compress)
	if err != nil {
		return 0, err
	}
	workers = s.opt.CompressThreads
	if workers <= 0 {
		workers = runtime.NumCPU()
	}
	s.compressor.workers = workers
	for range workers {
		go func() { errs <- s.pack(c) }()
	}
	return workers, nil
}

func (s *sending) pack(c *compressor) error {
	t := startTimer()
	for {
		f, err := s.queue.take()
		t.add(&s.compressor.in)
		if err != nil {
			return err
		}
		if f == nil {
			s.packed.close(s.queue.count())
			return nil
		}
		c.adapt(s.packed.empty())
		out, unused := c.compress(f, s.queue.frame())
		s.queue.recycle(unused)
		t.add(&s.compressor.busy)
		s.compressor.bytes.Add(int64(out.Raw))
		if err := s.packed.put(out); err != nil {
			return err
		}
		t.add(&s.compressor.out)
	}
}

// expand returns a frame with f's contents decompressed; f itself where they
// are not compressed.
func (r *receiving) expand(f *wire.Frame) (*wire.Frame, error) {
	if f.Flags&wire.Compressed == 0 {
		if int(f.Raw) != len(f.Payload()) {
			return nil, fmt.Errorf("%w: frame %d has %d bytes, its header says %d", ErrMiscounted, f.Seq, len(f.Payload()), f.Raw)
		}
		return f, nil
	}
	out := r.queue.frame()
	if len(out.Room()) < int(f.Raw) {
		out = wire.NewFrame(int(f.Raw))
	}
	plain, err := r.decoder.DecodeAll(f.Payload(), out.Room()[:0])
	if err != nil || len(plain) != int(f.Raw) || len(plain) > len(out.Room()) {
		return nil, fmt.Errorf("%w: frame %d does not decompress to %d bytes: %w", ErrMiscounted, f.Seq, f.Raw, err)
	}
	out.SetLen(len(plain))
	out.Kind, out.Seq, out.Raw, out.Flags = f.Kind, f.Seq, f.Raw, 0
	r.expander.bytes.Add(int64(len(plain)))
	r.queue.recycle(f)
	return out, nil
}

// newDecoder returns a decoder that never allocates more than a frame may hold.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(wire.MaxPayload), zstd.WithDecoderConcurrency(0))
}
