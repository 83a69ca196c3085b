package transfer

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
	"zxfer/pkg/wire"
)

// Compression works frame by frame: each payload is a whole zstd frame, so
// cores work side by side, every frame may have a level of its own, and any
// zstd -d reads their concatenation.
const (
	// worthwhile is the share of a frame that compression must save, or the
	// frame is sent as it is.
	worthwhile = 0.05
	// hopeless frames in a row that save less end compression for a while.
	hopeless = 4
	// After that one frame is tried every probeFirst bytes, then ever less
	// often, down to every probeLast bytes.
	probeFirst = 64 << 20
	probeLast  = 256 << 20
	// mostBest bounds the encoders of the highest level, where the level is not
	// the user's choice: each has tables of 34 MiB (bestLongTableBits,
	// https://github.com/klauspost/compress/blob/v1.20.3/zstd/enc_best.go).
	// A link that two of them cannot fill gets a lower level soon.
	mostBest = 2
)

// packer compresses pieces between the reader and the ring's takers.
type packer struct {
	encoders []*zstd.Encoder // by level, the fastest first; one if it is fixed
	adaptive bool
	threads  int
	work     chan *piece
	meter    meter
	idle     []*wire.Stopwatch

	packed atomic.Int64 // pieces done; those not yet taken are the backlog
	choice chooser
}

// newPacker understands "", "off", "auto", "zstd" and "zstd:LEVEL" (1 to 22); it
// returns nil for the first two.
func newPacker(o Options) (*packer, error) {
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
	p := &packer{adaptive: mode == "auto", threads: o.threads()}
	p.choice.top = len(levels) - 1
	p.choice.threads = int64(p.threads)
	p.work = make(chan *piece, 2*p.threads)
	for _, l := range levels {
		n := p.threads
		if p.adaptive && l == zstd.SpeedBestCompression {
			n = min(n, mostBest)
		}
		// The end's digest covers the stream: a checksum a frame adds nothing.
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(n), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		p.encoders = append(p.encoders, e)
	}
	p.idle = stopwatches(p.threads)
	p.meter.name, p.meter.in = StageCompress, waits(p.idle...)
	return p, nil
}

// threads is how many goroutines compress or decompress.
func (o Options) threads() int {
	if o.CompressThreads > 0 {
		return o.CompressThreads
	}
	return runtime.NumCPU()
}

// add hands a piece to the workers.
func (k *packer) add(p *piece) {
	p.ready = make(chan struct{})
	k.work <- p // workers never block: there is room again soon
}

// start starts the workers; they end when work is closed.
func (k *packer) start(g *sync.WaitGroup, r *ring) {
	for i := range k.threads {
		g.Add(1)
		go func() {
			defer g.Done()
			k.idle[i].Start()
			for p := range k.work {
				k.idle[i].Stop()
				k.pack(p, r)
				close(p.ready)
				k.idle[i].Start()
			}
		}()
	}
}

// pack replaces a piece's block by a compressed one, if that is worth it.
func (k *packer) pack(p *piece, r *ring) {
	defer k.packed.Add(1)
	packed := k.encode(p.block, k.packed.Load()-int64(r.taken()), r.get, r.release)
	if packed != nil {
		p.header.Flags |= wire.Compressed
		r.release(p.block)
		p.block = packed
	}
}

// encode compresses a block's payload into a spare block, unless that is not
// worth it: then it returns nil. backlog is how many compressed blocks wait
// for the network.
func (k *packer) encode(b *wire.Block, backlog int64, get func() *wire.Block, release func(*wire.Block)) *wire.Block {
	raw := b.Payload()
	k.meter.bytes.Add(int64(len(raw)))
	level, try := 0, true
	if k.adaptive {
		level, try = k.choice.next(len(raw), backlog)
	}
	if !try {
		return nil
	}
	spare := get()
	out := k.encoders[level].EncodeAll(raw, spare.Room()[:0])
	saved := len(raw) - len(out)
	good := float64(saved) >= worthwhile*float64(len(raw))
	k.choice.learn(good)
	if !good {
		release(spare)
		return nil
	}
	spare.SetLen(len(out)) // in place: it is shorter than the room
	return spare
}

// chooser picks the level of each frame, and whether to try at all.
type chooser struct {
	top     int // the highest level
	threads int64

	mu     sync.Mutex
	level  int
	since  int64 // frames since the level changed
	poor   int   // frames in a row that saved too little
	skip   int64 // bytes until the next try
	stride int64 // bytes from one try to the next while compression rests
}

// next chooses for a frame of n bytes while backlog compressed frames wait for
// the network: many mean that there is time for a higher level, few that the
// network is about to wait for the compressors.
func (c *chooser) next(n int, backlog int64) (level int, try bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skip > 0 {
		c.skip -= int64(n)
		return 0, false
	}
	if c.poor >= hopeless { // a probe: that nothing is compressed is why they wait
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

// learn notes whether a frame was worth its compression.
func (c *chooser) learn(good bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if good {
		c.poor, c.skip, c.stride = 0, 0, 0
		return
	}
	if c.poor++; c.poor < hopeless {
		return
	}
	if c.stride == 0 {
		c.stride = probeFirst
	} else if c.poor > hopeless {
		c.stride = min(2*c.stride, probeLast)
	}
	c.skip = c.stride
}
