package transfer

import (
	"context"
	"io"
	"os"
	"time"

	"zxfer/pkg/transport/tcp"
)

// Source yields a stream.
type Source interface {
	// Read returns io.EOF only when the stream ended well; a producer that
	// failed returns its failure instead, after its last bytes.
	io.Reader
	// Close ends the producer, if it still runs, and releases it. It may be
	// called more than once, and while a Read is under way, which then fails.
	Close() error
	// Name says what produces, for meters and messages: "zfs send tank/a@x".
	Name() string
}

// Sink stores a stream. It must not let the stream take effect before Commit.
type Sink interface {
	io.Writer
	// Commit makes the stream take effect; nil means it is stored. After a
	// Commit, whatever it returned, or an Abort the Sink is released.
	Commit(ctx context.Context) error
	// Abort gives up: the target stays resumable or as it was. The error
	// tells what the Sink itself has to say, nil if nothing beyond cause. It
	// may be called while a Write is under way, which then fails.
	Abort(cause error) error
	Name() string
}

// PipeSource is a Source whose bytes come out of a pipe: they may be moved on
// without being copied. Whoever takes them off the pipe calls Wait after its
// end of file for what Read would have returned: nil, or the failure.
type PipeSource interface {
	Source
	// Pipe is the end to read; it must not block (see os.NewFile).
	Pipe() *os.File
	Wait() error
}

// PipeSink is a Sink whose bytes go into a pipe. Write and the pipe may be used
// in turns. When writing to the pipe fails, Abort tells why.
type PipeSink interface {
	Sink
	// Pipe is the end to write; it must not block (see os.NewFile).
	Pipe() *os.File
	// Passes is how many of the next bytes may go into the pipe unseen. All
	// others go through Write, which judges them.
	Passes() int64
	// Passed takes note of n bytes that went into the pipe.
	Passed(n int64)
}

// TailHolder is a Sink that must not see the last bytes of the stream before
// the stream's end was verified, as without them it cannot take effect.
type TailHolder interface {
	// Withhold is how many bytes that is.
	Withhold() int
}

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

// Stage is what one stage did so far. Busy+WaitIn+WaitOut is its lifetime, of
// one goroutine on average where it has several.
type Stage struct {
	Name    string        `json:"name"` // see the Stage… constants
	Bytes   int64         `json:"bytes"`
	Busy    time.Duration `json:"busy_ns"`
	WaitIn  time.Duration `json:"wait_in_ns"`
	WaitOut time.Duration `json:"wait_out_ns"`
}

// The stages, in the order that data passes them. A local copy has only the
// first and the last, and StageLimit where one was set.
const (
	StageRead     = "read" // bytes from the Source; busy is waiting for it
	StageCompress = "compress"
	StageLimit    = "limit"   // busy is waiting for the bandwidth limit
	StageSend     = "send"    // tag or encrypt; waits out for the network
	StageReceive  = "receive" // waits in for the network; check or decrypt
	StageExpand   = "decompress"
	StageWrite    = "write" // bytes into the Sink; busy is waiting for it

	// Only an engine that moves blocks has these.
	StageHash   = "hash"   // of what was read
	StageVerify = "verify" // what was written, read back
)

// Progress is a moment of a running transfer, as one end sees it.
type Progress struct {
	Bytes   int64         `json:"bytes"` // stream bytes that this end has moved
	Files   int64         `json:"files,omitempty"`
	Elapsed time.Duration `json:"elapsed_ns"`
	Stages  []Stage       `json:"stages"`
	Network *Network      `json:"network,omitempty"`
	// Processors is how many the host has, 0 = unknown, and Used for how long each was
	// busy, added up, whatever with.
	Processors int           `json:"processors,omitempty"`
	Used       time.Duration `json:"processors_used_ns,omitempty"`
}

// Busy is how many of the host's processors were, on average.
func (p Progress) Busy() float64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return p.Used.Seconds() / p.Elapsed.Seconds()
}

// Network is what the kernel says of the connections.
type Network = tcp.Network

// Result is one end's account of a finished stream.
type Result struct {
	Progress
	WireBytes int64  `json:"wire_bytes"` // bytes that crossed the network, frames and tags included
	Frames    int64  `json:"frames"`
	Digest    string `json:"digest,omitempty"` // hex xxh3-128 of the stream; "" on the zero-copy path
	// Pace is set where noise was moved, to measure the way.
	Pace *Pace `json:"pace,omitempty"`
}

// Pace is how fast noise was moved, as one end saw it.
type Pace struct {
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`   // in which these crossed: neither making the connections nor waiting for the end
	CPU     float64 `json:"cpus_busy"` // processors of the host, on average, with whatever else it did
}
