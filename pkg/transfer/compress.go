package transfer

import (
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport/tcp"
)

// Each payload is a whole zstd frame. So cores work in parallel, each frame may have its own
// level, and zstd -d reads their concatenation.
const (
	// minSaving is the least share of a frame that compression must save. Otherwise the frame
	// is sent uncompressed.
	minSaving = 0.05
	// maxPoorFrames is how many frames in a row may save less before compression pauses.
	maxPoorFrames = 4
	// During a pause, one frame is tried every firstProbeInterval bytes. The interval doubles
	// up to maxProbeInterval.
	firstProbeInterval = 64 << 20
	maxProbeInterval   = 256 << 20
	// maxBestEncoders bounds the encoders of the highest level in auto mode. Each has tables of
	// 34 MiB (bestLongTableBits,
	// https://github.com/klauspost/compress/blob/v1.20.3/zstd/enc_best.go). A link that two of
	// them cannot fill soon gets a lower level.
	maxBestEncoders = 2
)

// Compressor compresses blocks. Encode may be called concurrently.
type Compressor struct {
	Threads  int             // how many goroutines may call Encode concurrently
	encoders []*zstd.Encoder // by level, fastest first; one if the level is fixed
	adaptive bool
	choice   levelChooser
}

// NewCompressor returns the compressor for o.Compress: "", "off", "auto", "zstd" or
// "zstd:LEVEL" (1 to 22). It returns nil for the first two.
func NewCompressor(o Options) (*Compressor, error) {
	mode, text, levelled := strings.Cut(o.Compress, ":")
	levels := []zstd.EncoderLevel{zstd.SpeedFastest, zstd.SpeedDefault, zstd.SpeedBetterCompression, zstd.SpeedBestCompression}
	level, err := 3, error(nil)
	if levelled {
		level, err = strconv.Atoi(text)
	}
	switch {
	case err != nil || level < 1 || level > 22 || levelled && mode != "zstd":
		return nil, fault.Usagef("off, auto, zstd or zstd:1 to zstd:22", "unknown compression %q", o.Compress)
	case mode == "" || mode == "off":
		return nil, nil
	case mode == "zstd":
		levels = []zstd.EncoderLevel{zstd.EncoderLevelFromZstd(level)}
	case mode != "auto":
		return nil, fault.Usagef("off, auto, zstd or zstd:1 to zstd:22", "unknown compression %q", o.Compress)
	}
	if o.lowLevels && mode == "auto" {
		levels = levels[:len(levels)-1]
	}
	k := &Compressor{adaptive: mode == "auto", Threads: o.threads()}
	k.choice.top = len(levels) - 1
	k.choice.threads = int64(k.Threads)
	window := 1 << bits.Len(uint(o.Filled().Block-1)) // an encoder keeps as much memory, and no frame needs more
	for _, l := range levels {
		n := k.Threads
		if k.adaptive && l == zstd.SpeedBestCompression {
			n = min(n, maxBestEncoders)
		}
		// the digest of the stream makes checksums per frame redundant
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(n), zstd.WithEncoderCRC(false),
			zstd.WithWindowSize(window))
		if err != nil {
			return nil, err
		}
		k.encoders = append(k.encoders, e)
	}
	return k, nil
}

// Encode compresses a block into a new one and returns it, or nil if that saves too little.
// backlog is the number of compressed blocks that wait for the network.
func (k *Compressor) Encode(b *tcp.Block, backlog int64, get func() *tcp.Block, release func(*tcp.Block)) *tcp.Block {
	raw := b.Payload()
	level, try := 0, true
	if k.adaptive {
		level, try = k.choice.next(len(raw), backlog)
	}
	if !try {
		return nil
	}
	spare := get()
	out := k.encoders[level].EncodeAll(raw, spare.Buffer()[:0])
	saved := len(raw) - len(out)
	good := float64(saved) >= minSaving*float64(len(raw))
	k.choice.record(good)
	if !good {
		release(spare)
		return nil
	}
	spare.SetLen(len(out)) // no copy: the output is shorter than the room
	return spare
}

// levelChooser chooses the level of each frame, and whether to compress it at all.
type levelChooser struct {
	top     int // highest level
	threads int64

	mu     sync.Mutex
	level  int
	since  int64 // frames since the level changed
	poor   int   // frames in a row that saved too little
	skip   int64 // bytes until the next probe
	stride int64 // bytes between probes during a pause
}

// next returns the level for a frame of n bytes, and whether to compress it. A large backlog of
// compressed frames leaves time for a higher level. A small one means that the network is about
// to wait for compression.
func (c *levelChooser) next(n int, backlog int64) (level int, try bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skip > 0 {
		c.skip -= int64(n)
		return 0, false
	}
	if c.poor >= maxPoorFrames { // a probe; the backlog is meaningless while nothing is compressed
		c.skip, c.level = c.stride, 0
		return 0, true
	}
	c.since++
	switch {
	case backlog <= c.threads:
		if c.level > 0 {
			c.level--
			c.since = 0
		}
	case backlog >= 4*c.threads+4 && c.since >= 2*c.threads && c.level < c.top:
		c.level++
		c.since = 0
	}
	return c.level, true
}

// record records whether compression saved enough of a frame.
func (c *levelChooser) record(good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if good {
		c.poor, c.skip, c.stride = 0, 0, 0
		return
	}
	if c.poor++; c.poor < maxPoorFrames {
		return
	}
	if c.stride == 0 {
		c.stride = firstProbeInterval
	} else if c.poor > maxPoorFrames {
		c.stride = min(2*c.stride, maxProbeInterval)
	}
	c.skip = c.stride
}

// maxWindow bounds the window in bytes that a zstd frame may declare. A compressor declares at
// most twice the block size.
const maxWindow = 2 * tcp.MaxRaw

// NewDecoder returns a function that decompresses a block into room. The decoder is created
// with the first block, because most transfers have none. Output is bounded by the capacity of
// room and by opt.Block, and memory by little more, even for hostile input.
func NewDecoder(opt Options) func(packed, room []byte) ([]byte, error) {
	open := sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(opt.Block)), zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderConcurrency(opt.threads()))
	})
	return func(packed, room []byte) ([]byte, error) {
		d, err := open()
		if err != nil {
			return nil, err
		}
		return d.DecodeAll(packed, room)
	}
}

// compressStage compresses pieces between the reader and the ring's takers.
type compressStage struct {
	*Compressor
	*workers
	ring   *ring
	packed atomic.Int64 // number of finished pieces; those not yet taken are the backlog
}

// newCompressStage returns nil if compression is off.
func newCompressStage(o Options) (*compressStage, error) {
	c, err := NewCompressor(o)
	if c == nil {
		return nil, err
	}
	k := &compressStage{Compressor: c}
	k.workers = newWorkers(StageCompress, c.Threads, k.compress)
	return k, nil
}

// add queues a piece for the workers.
func (k *compressStage) add(p *piece) {
	p.ready = make(chan struct{})
	k.queue <- p // workers never block, so there soon is room
}

// compress replaces a piece's block with a compressed one if that saves enough.
func (k *compressStage) compress(p *piece) {
	defer k.packed.Add(1)
	k.meter.bytes.Add(int64(len(p.block.Payload())))
	packed := k.Encode(p.block, k.packed.Load()-int64(k.ring.taken()), k.ring.get, k.ring.release)
	if packed != nil {
		p.header.Flags |= tcp.Compressed
		k.ring.release(p.block)
		p.block = packed
	}
}

// decompressStage decompresses pieces between the connections and the ring. It starts with the
// first compressed frame, because most streams have none.
type decompressStage struct {
	*workers
	ring      *ring
	decode    func(packed, room []byte) ([]byte, error)
	startOnce sync.Once
}

func newDecompressStage(o Options, r *ring) *decompressStage {
	x := &decompressStage{ring: r, decode: NewDecoder(o)}
	x.workers = newWorkers(StageExpand, o.threads(), x.decompress)
	return x
}

// add queues a piece for the workers. busy counts the time that the queue is full. It may be
// called concurrently.
func (x *decompressStage) add(ctx context.Context, p *piece, busy *tcp.WaitTimer) error {
	x.startOnce.Do(x.start)
	p.ready = make(chan struct{})
	select {
	case x.queue <- p:
		return nil
	default:
	}
	busy.Start()
	defer busy.Stop()
	select {
	case x.queue <- p:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// decompress decompresses one piece in place. If a frame holds more bytes than its header says,
// the piece gets an error. This costs at most one block of memory.
func (x *decompressStage) decompress(p *piece) {
	x.meter.bytes.Add(int64(p.header.Raw))
	out := x.ring.get()
	size := min(int(p.header.Raw), len(out.Buffer()))
	raw, err := x.decode(p.block.Payload(), out.Buffer()[:0:size])
	if err != nil || len(raw) != int(p.header.Raw) {
		p.err = fmt.Errorf("%w: frame %d does not decompress to %d bytes", ErrTotalsMismatch, p.header.Position, p.header.Raw)
		if err != nil {
			p.err = fmt.Errorf("%w: %w", p.err, err)
		}
		return
	}
	out.SetLen(copy(out.Buffer(), raw)) // a copy onto itself unless the decoder reallocated
	x.ring.release(p.block)
	p.block = out
}

// workers process pieces on several cores. The taker of a piece waits until it is ready.
type workers struct {
	process func(*piece)
	queue   chan *piece
	meter   meter
	idle    WaitTimers
	running sync.WaitGroup
}

func newWorkers(stage string, n int, do func(*piece)) *workers {
	w := &workers{process: do, queue: make(chan *piece, 2*n), idle: NewWaitTimers(n)}
	for _, watch := range w.idle {
		watch.Start()
	}
	w.meter.name, w.meter.waitIn = stage, w.idle.mean
	return w
}

func (w *workers) start() {
	for _, idle := range w.idle {
		w.running.Go(func() {
			for p := range w.queue {
				idle.Stop()
				w.process(p)
				close(p.ready)
				idle.Start()
			}
		})
	}
}

// stop waits for the workers to finish. The caller must not queue anything afterwards.
func (w *workers) stop() {
	close(w.queue)
	w.running.Wait()
}
