package transfer

import (
	"runtime"
	"time"

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
	// Concurrent limits how many streams in the control connection run on a host at the same time; 0 = no limit. See Places.
	Concurrent int `json:"concurrent,omitempty"`
	// LimitID is the same for all streams that together keep BandLimit and Concurrent; 0 = only this stream keeps BandLimit.
	LimitID uint64 `json:"limit_id,string,omitempty"`

	bucket    *bucket // set by Limits.Share
	lowLevels bool    // "auto" does not use the highest level; set by Memory.Reserve
}

// Defaults for Options.
const (
	DefaultBuffer = 256 << 20
	DefaultBlock  = 1 << 20
	DefaultStall  = 10 * time.Minute
	// MaxStall is the largest Stall that hosts accept. The receiver of a WorkingSource needs it,
	// because only the sender knows whether the source works.
	MaxStall = 24 * time.Hour
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

// threads returns the number of goroutines that compress or decompress.
func (o Options) threads() int {
	if o.CompressThreads > 0 {
		return o.CompressThreads
	}
	return runtime.NumCPU()
}
