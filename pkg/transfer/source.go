package transfer

import (
	"context"
	"io"
	"os"
)

// Source produces a stream.
type Source interface {
	// Read returns io.EOF only if the stream ended well. If the producer failed, Read returns
	// that error after the last bytes.
	io.Reader
	// Close stops the producer and releases it. It may be called more than once, and during a
	// Read, which then fails.
	Close() error
	// Name names the producer for meters and messages: "zfs send tank/a@x".
	Name() string
}

// Sink stores a stream. The stream must not take effect before Commit.
type Sink interface {
	io.Writer
	// Commit makes the stream take effect and returns nil once it is stored. Commit and Abort
	// release the Sink, even if they fail.
	Commit(ctx context.Context) error
	// Abort discards the stream or keeps it resumable. It returns the Sink's own error, or nil
	// if that adds nothing to cause. It may be called during a Write, which then fails.
	Abort(cause error) error
	Name() string
}

// PipeSource is a Source that can be spliced from its pipe. After the end of the pipe, the
// reader calls Wait, which returns nil or the producer's error.
type PipeSource interface {
	Source
	// Pipe returns the read end, which must be non-blocking (see os.NewFile).
	Pipe() *os.File
	Wait() error
}

// PipeSink is a Sink that can be spliced to its pipe. Writes and splices may alternate. If
// writing to the pipe fails, Abort returns the reason.
type PipeSink interface {
	Sink
	// Pipe returns the write end, which must be non-blocking (see os.NewFile).
	Pipe() *os.File
	// Passes returns how many of the next bytes may bypass Write. The Sink inspects all others.
	Passes() int64
	// Passed counts n bytes that were spliced into the pipe.
	Passed(n int64)
}

// TailHolder is a Sink whose stream cannot take effect without its last bytes. It receives them
// only after the end of the stream is verified.
type TailHolder interface {
	// Withhold returns the number of those bytes.
	Withhold() int
}
