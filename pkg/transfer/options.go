package transfer

import (
	"runtime"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Options shape a transfer. The zero value is usable. Both ends of a transfer
// must be given the same Block.
type Options struct {
	Buffer          int64  `json:"buffer,omitempty"`   // bytes of ring on each side; 0 = DefaultBuffer
	Block           int    `json:"block,omitempty"`    // bytes per frame; 0 = DefaultBlock
	BandLimit       int64  `json:"bwlimit,omitempty"`  // bytes per second over all streams; 0 = none
	Compress        string `json:"compress,omitempty"` // "", "off", "auto", "zstd", "zstd:N"
	CompressThreads int    `json:"compress_threads,omitempty"`
	// Stall ends a transfer that moved no byte for this long; 0 = DefaultStall.
	Stall time.Duration `json:"stall,omitempty"`
}

// Defaults for Options.
const (
	DefaultBuffer = 256 << 20
	DefaultBlock  = 1 << 20
	DefaultStall  = 10 * time.Minute
)

// MinBlock is the smallest frame in bytes, but for what a source yields less.
const MinBlock = 16 << 10

// SmallBlock is the block of the smallest streams, in bytes: they are about one.
const SmallBlock = 4 * MinBlock

// Small tells that a stream is about one small block.
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

// limitedBlock keeps frames small enough for a low limit: twenty a second.
func (o Options) limitedBlock() int {
	if o.BandLimit <= 0 {
		return o.Block
	}
	return int(min(int64(o.Block), max(o.BandLimit/20, MinBlock)))
}

// threads is how many goroutines compress or decompress.
func (o Options) threads() int {
	if o.CompressThreads > 0 {
		return o.CompressThreads
	}
	return runtime.NumCPU()
}
