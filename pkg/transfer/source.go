package transfer

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/transport/tcp"
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

// WorkingSource is a Source that may work for a long time before it has data, which is not a stall.
type WorkingSource interface {
	Source
	// Worked returns a number of processed bytes. It may be called at any time.
	Worked() int64
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

// PipeSink is a Sink that can be spliced to its pipe. Writes and splices may alternate.
type PipeSink interface {
	Sink
	// Reads reports whether the consumer only reads the pipe. If it may splice or tee it, as a script with pv(1) does,
	// no block is lent to the pipe: its pages are reused once they have left it.
	Reads() bool
	// Pipe returns the write end, which must be non-blocking (see os.NewFile).
	Pipe() *os.File
	// Bypassable returns how many of the next bytes may bypass Write. The Sink inspects all others.
	Bypassable() int64
	// Bypassed counts n bytes that were spliced into the pipe.
	Bypassed(n int64)
	// Check inspects the next bytes like Write. The caller then puts them into the pipe.
	Check(p []byte) error
	// Explain returns the reason why bytes could not be put into the pipe, such as the error of the
	// consumer, or err if it knows none. It may wait for the consumer to end.
	Explain(err error) error
}

// TailHolder is a Sink whose stream cannot take effect without its last bytes. It receives them
// only after the end of the stream is verified.
type TailHolder interface {
	// Withhold returns the number of those bytes.
	Withhold() int
}

// readTimeout is how long a reader fills a block while the next stage is idle. A fast source
// fills it sooner. A slow source sends a partial block after this time, or with its first bytes
// if they take longer.
const readTimeout = 5 * time.Millisecond

// maxEmptyReads is the number of empty reads in a row after which a Source has failed.
const maxEmptyReads = 100

// reader reads a Source into a ring.
type reader struct {
	src   Source
	ring  *ring
	block int
	meter meter
	full  tcp.WaitTimer // counts the time without room in the ring
	hash  *xxh3.Hasher128
	// prepare is called for each piece before the ring gets it; may be nil.
	prepare func(*piece)

	pieces uint64
}

func newReader(src Source, r *ring, block int) *reader {
	d := &reader{src: src, ring: r, block: block, hash: xxh3.New128()}
	d.meter.name, d.meter.waitOut = StageRead, WaitTimers{&d.full}.mean
	return d
}

// run reads until the end of the source and closes the ring. The ring passes on all pieces
// before the source's error. Errors that run returns are the ring's own.
func (d *reader) run() error {
	for {
		b := d.ring.get()
		n, rerr := d.fill(b.Buffer()[:d.block])
		if n > 0 {
			b.SetLen(n)
			_, _ = d.hash.Write(b.Payload()) // never fails
			p := &piece{block: b, header: tcp.Header{Kind: tcp.Data, Position: d.pieces, Raw: uint32(n)}}
			if d.prepare != nil {
				d.prepare(p)
			}
			if err := d.ring.put(p, &d.full); err != nil {
				return err
			}
			d.pieces++
			d.meter.bytes.Add(int64(n))
		}
		if rerr != nil {
			d.full.Start() // the reader now waits for the other stages
			if errors.Is(rerr, io.EOF) {
				rerr = nil
			} else {
				rerr = &sourceError{rerr}
			}
			return d.ring.close(d.pieces, rerr)
		}
	}
}

// fill reads until room is full, or until the next stage has idled for readTimeout.
func (d *reader) fill(room []byte) (n int, err error) {
	var began time.Time
	empty := 0
	for n < len(room) && err == nil {
		idle := d.ring.starved()
		if idle && began.IsZero() {
			began = time.Now()
		}
		var k int
		k, err = d.src.Read(room[n:])
		n += k
		switch {
		case err != nil:
		case k == 0:
			if empty++; empty >= maxEmptyReads {
				err = io.ErrNoProgress
			}
		case n < len(room) && idle && time.Since(began) >= readTimeout:
			return n, nil
		}
	}
	return n, err
}

// worked returns the bytes that a WorkingSource processed, 0 for other sources.
func (d *reader) worked() int64 {
	if w, ok := d.src.(WorkingSource); ok {
		return w.Worked()
	}
	return 0
}

// digest returns the xxh3-128 of all bytes read.
func (d *reader) digest() [16]byte { return d.hash.Sum128().Bytes() }
