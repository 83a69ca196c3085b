// Package transfer moves a stream from a Source to a Sink through stages
// that overlap: bounded buffers between them, and a meter at each which tells
// how long the stage waited for its input and for its output. The stage that
// waits for neither is the bottleneck.
//
// It knows streams and frames, not datasets or devices: those are Sources and
// Sinks. What crosses the network is package wire's.
package transfer

import (
	"context"
	"io"
	"os"
	"time"

	"zxfer/pkg/wire"
)

// Source yields a stream.
type Source interface {
	// Read returns io.EOF only when the stream ended well; a producer that
	// failed returns its failure instead, after its last bytes.
	io.Reader
	// Close ends the producer, if it still runs, and releases it.
	Close() error
	// Name says what produces, for meters and messages: "zfs send tank/a@x".
	Name() string
}

// Sink stores a stream. It must not let the stream take effect before Commit.
type Sink interface {
	io.Writer
	// Commit makes the stream take effect; nil means it is stored. After a
	// Commit or Abort the Sink is released.
	Commit(ctx context.Context) error
	// Abort gives up: the target stays resumable or as it was. The error
	// tells what the Sink itself has to say, nil if nothing beyond cause.
	Abort(cause error) error
	Name() string
}

// PipeSource is a Source whose bytes come out of a pipe: they may be moved on
// without being copied. Whoever takes them off the pipe calls Wait after its
// end of file for what Read would have returned: nil, or the failure.
type PipeSource interface {
	Source
	Pipe() *os.File
	Wait() error
}

// PipeSink is a Sink whose bytes go into a pipe.
type PipeSink interface {
	Sink
	Pipe() *os.File
}

// Withholder is a Sink that must not see the stream's last bytes before the
// stream's end has been verified: without them it cannot take effect.
type Withholder interface{ Withhold() int }

// Options shape a transfer. The zero value is usable.
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

// Stage is what one stage did so far. Busy+WaitIn+WaitOut is its lifetime.
type Stage struct {
	Name    string        `json:"name"` // see the Stage… constants
	Bytes   int64         `json:"bytes"`
	Busy    time.Duration `json:"busy_ns"`
	WaitIn  time.Duration `json:"wait_in_ns"`
	WaitOut time.Duration `json:"wait_out_ns"`
}

// The stages, in the order that data passes them. A local copy has only the
// first and the last.
const (
	StageRead     = "read" // bytes from the Source
	StageCompress = "compress"
	StageSend     = "send"    // tag or encrypt, and write to the network
	StageReceive  = "receive" // read from the network, check the tag or decrypt
	StageExpand   = "decompress"
	StageWrite    = "write" // bytes into the Sink
)

// Progress is a moment of a running transfer, as one end sees it.
type Progress struct {
	Bytes   int64         `json:"bytes"` // stream bytes that this end has moved
	Elapsed time.Duration `json:"elapsed_ns"`
	Stages  []Stage       `json:"stages"`
	Network *Network      `json:"network,omitempty"`
}

// Network is what the kernel says of the connections.
type Network = wire.Network

// Result is one end's account of a finished stream.
type Result struct {
	Progress
	WireBytes int64  `json:"wire_bytes"` // bytes that crossed the network, frames and tags included
	Frames    int64  `json:"frames"`
	Digest    string `json:"digest,omitempty"` // hex xxh3-128 of the stream; "" on the zero-copy path
}
