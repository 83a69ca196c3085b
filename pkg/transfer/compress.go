package transfer

import (
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport/tcp"
)

// Compression works frame by frame: each payload is a whole zstd frame, so
// cores work side by side, every frame may have a level of its own, and any
// zstd -d reads their concatenation.
const (
	// minSaving is the share of a frame that compression must save, or the
	// frame is sent as it is.
	minSaving = 0.05
	// maxPoorFrames frames in a row that save less end compression for a while.
	maxPoorFrames = 4
	// After that one frame is tried every firstProbeInterval bytes, then ever less
	// often, down to every probeLast bytes.
	firstProbeInterval = 64 << 20
	maxProbeInterval  = 256 << 20
	// maxBestEncoders bounds the encoders of the highest level, where the level is not
	// the user's choice: each has tables of 34 MiB (bestLongTableBits,
	// https://github.com/klauspost/compress/blob/v1.20.3/zstd/enc_best.go).
	// A link that two of them cannot fill gets a lower level soon.
	maxBestEncoders = 2
)

// Compressor compresses blocks, several at once.
type Compressor struct {
	Threads  int             // as many may call Encode at once
	encoders []*zstd.Encoder // by level, the fastest first; one if it is fixed
	adaptive bool
	choice   levelChooser
}

// NewCompressor understands "", "off", "auto", "zstd" and "zstd:LEVEL" (1 to 22);
// it returns nil for the first two.
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
	k := &Compressor{adaptive: mode == "auto", Threads: o.threads()}
	k.choice.top = len(levels) - 1
	k.choice.threads = int64(k.Threads)
	for _, l := range levels {
		n := k.Threads
		if k.adaptive && l == zstd.SpeedBestCompression {
			n = min(n, maxBestEncoders)
		}
		// The end's digest covers the stream: a checksum a frame adds nothing.
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(l), zstd.WithEncoderConcurrency(n), zstd.WithEncoderCRC(false))
		if err != nil {
			return nil, err
		}
		k.encoders = append(k.encoders, e)
	}
	return k, nil
}

// Encode compresses a block's payload into a spare block, unless that is not
// worth it: then it returns nil. backlog is how many compressed blocks wait
// for the network.
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
	out := k.encoders[level].EncodeAll(raw, spare.Room()[:0])
	saved := len(raw) - len(out)
	good := float64(saved) >= minSaving*float64(len(raw))
	k.choice.record(good)
	if !good {
		release(spare)
		return nil
	}
	spare.SetLen(len(out)) // in place: it is shorter than the room
	return spare
}

// levelChooser picks the level of each frame, and whether to try at all.
type levelChooser struct {
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
func (c *levelChooser) next(n int, backlog int64) (level int, try bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.skip > 0 {
		c.skip -= int64(n)
		return 0, false
	}
	if c.poor >= maxPoorFrames { // a probe: that nothing is compressed is why they wait
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

// record notes whether a frame was worth its compression.
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

// maxWindow bounds the window that a zstd frame declares, in bytes. A compressor declares at
// most twice the size of a block.
const maxWindow = 2 * tcp.MaxRaw

// NewDecoder returns a function that decompresses a block into room. It starts with the first
// block, because most transfers have none. It never returns more bytes than the capacity of
// room or opt.Block, and needs little more memory, whatever a hostile sender compressed.
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
