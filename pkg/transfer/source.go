package transfer

import (
	"context"
	"io"
	"os"
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
