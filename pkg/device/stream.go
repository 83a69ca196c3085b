package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// Standard is the path of standard input as a source, and of standard output as a
// target. Only the process that the user started can use them.
const Standard = "-"

// KindStream is the kind of Facts for Standard. The size of a stream is unknown
// until its end.
const KindStream = "stream"

// Streams are the standard input and output of a process. nil means unavailable.
type Streams struct {
	In  io.Reader
	Out io.Writer
}

// isStream reports whether one end of the task is a stream. It is copied in order
// by package transfer, and cannot be resumed.
func (t Task) isStream() bool {
	return t.Source.Path == Standard || t.Target.Path == Standard
}

// openStream works as open, for a stream.
func (t Task) openStream(ctx context.Context, link *tcp.Link, std Streams, progress func(transfer.Progress)) (run func() (Result, error), err error) {
	e := transfer.Ends{Link: link}
	if t.Read {
		if e.Source, err = t.streamSource(ctx, std); err != nil {
			return nil, err
		}
	}
	if t.Write {
		if e.Sink, err = t.streamSink(ctx, std); err != nil {
			if e.Source != nil {
				err = errors.Join(err, e.Source.Close())
			}
			return nil, err
		}
	}
	return func() (res Result, err error) {
		res.Result, err = transfer.Move(ctx, e, t.Options.Options, progress)
		if e.Source != nil {
			if cerr := e.Source.Close(); err == nil {
				err = cerr
			}
		}
		res.Device = Account{Size: res.Bytes, Block: t.Options.Block, Data: res.Bytes}
		if w, ok := e.Sink.(*deviceWriter); ok && err == nil {
			w.account(&res.Device)
		}
		return res, err
	}, nil
}

func (t Task) streamSource(ctx context.Context, std Streams) (transfer.Source, error) {
	if t.Source.Path == Standard {
		if std.In == nil {
			return nil, errors.New("this host has no standard input")
		}
		return newStandardInput(std.In), nil
	}
	src, err := openSource(ctx, t)
	if err != nil {
		return nil, err
	}
	return &deviceReader{Source: src, close: sync.OnceValue(src.Close), buf: AlignedBuffer(t.Options.Block)}, nil
}

func (t Task) streamSink(ctx context.Context, std Streams) (transfer.Sink, error) {
	if t.Target.Path == Standard {
		if std.Out == nil {
			return nil, errors.New("this host has no standard output")
		}
		return &standardOutput{std.Out}, nil
	}
	if _, _, err := t.refreshTarget(ctx); err != nil {
		return nil, err
	}
	size := t.Target.Size
	if t.Target.IsFile() {
		size = 0 // it grows with the stream
	}
	dst, err := OpenTarget(ctx, t.Target, size, t.Sparse)
	if err != nil {
		return nil, err
	}
	if err := removeVolumeRecord(t.Target); err != nil {
		return nil, errors.Join(err, dst.Discard())
	}
	return &deviceWriter{Target: dst, opt: t.Options, buf: AlignedBuffer(t.Options.Block)}, nil
}

// standardInput reads a stream whose blocked reads do not delay Close.
type standardInput struct{ *io.PipeReader }

func newStandardInput(in io.Reader) *standardInput {
	r, w := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, make([]byte, 1<<20))
		_ = w.CloseWithError(err) // a nil err means EOF; the call always returns nil
	}()
	return &standardInput{r}
}

func (*standardInput) Name() string { return "standard input" }

type standardOutput struct{ io.Writer }

// Commit does nothing: the reader has the data already.
func (*standardOutput) Commit(context.Context) error { return nil }

// Abort does nothing: written data cannot be recalled.
func (*standardOutput) Abort(error) error { return nil }

func (*standardOutput) Name() string { return "standard output" }

// deviceReader reads a device from start to end.
type deviceReader struct {
	*Source
	close func() error
	buf   []byte
	left  []byte // unread part of buf
	off   int64
}

// Read returns the next bytes. At the end it checks that the source is unchanged.
func (r *deviceReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		n := min(int64(len(r.buf)), r.Size()-r.off)
		if n == 0 {
			if err := r.Unchanged(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		got, err := r.ReadAt(r.buf[:n], r.off)
		if int64(got) < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		r.left, r.off = r.buf[:n], r.off+n
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

// Close closes the source. Further calls have no effect.
func (r *deviceReader) Close() error { return r.close() }

// deviceWriter writes a stream to a block device from its start, or to an image
// file.
type deviceWriter struct {
	*Target
	opt    Options
	buf    []byte
	n      int // bytes used in buf
	off    int64
	sums   []Sum // of the blocks written, assuming more than one
	zeros  int64
	digest [32]byte
}

// Write appends p. It fails if the stream is longer than the device.
func (w *deviceWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := copy(w.buf[w.n:], p[done:])
		w.n, done = w.n+n, done+n
		if w.n == len(w.buf) {
			if err := w.flush(); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

func (w *deviceWriter) flush() error {
	p := w.buf[:w.n]
	if len(p) == 0 {
		return nil
	}
	switch end := w.off + int64(len(p)); {
	case w.facts.IsFile():
		if err := w.grow(end); err != nil {
			return err
		}
	case end > w.size:
		return fault.Failf("name a larger device (the start of the stream was written to this one)",
			"the stream is longer than %s (%d bytes)", w.Name(), w.size)
	}
	w.sums = append(w.sums, w.opt.BlockHash().Sum(p, w.off, math.MaxInt64))
	var err error
	if IsZero(p) {
		err = w.Zero(w.off, int64(len(p)))
		w.zeros += int64(len(p))
	} else {
		_, err = w.WriteAt(p, w.off)
	}
	w.off, w.n = w.off+int64(len(p)), 0
	return err
}

// Commit stores the stream and reads it back.
func (w *deviceWriter) Commit(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Discard())
		} else {
			err = w.Close()
		}
	}()
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.Sync(); err != nil {
		return err
	}
	if !w.opt.NoVerify {
		if err := w.readBack(ctx); err != nil {
			return err
		}
	}
	cut := w.opt.BlockHash()
	if len(w.sums) == 1 {
		// BLAKE3 hashes a single block differently. buf still holds it.
		w.sums[0] = cut.Sum(w.buf[:w.off], 0, w.off)
	}
	w.digest = cut.Root(w.sums)
	return w.Target.Commit()
}

func (w *deviceWriter) readBack(ctx context.Context) error {
	if err := w.DropCache(); err != nil {
		return err
	}
	for i, want := range w.sums {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off := int64(i) * int64(len(w.buf))
		p := w.buf[:min(int64(len(w.buf)), w.off-off)]
		if n, err := w.ReadAt(p, off); n < len(p) {
			return fmt.Errorf("%s: read back at byte %d: %w", w.Name(), off, errors.Join(err, io.ErrUnexpectedEOF))
		}
		if w.opt.BlockHash().Sum(p, off, math.MaxInt64) != want {
			return fmt.Errorf("%s: %w: bytes %d to %d", w.Name(), ErrCorrupt, off, off+int64(len(p)))
		}
	}
	return nil
}

// Abort keeps data written to a device, but deletes a new file: it cannot be
// resumed, and looks like a complete copy.
func (w *deviceWriter) Abort(error) error { return w.Discard() }

func (w *deviceWriter) account(d *Account) {
	d.Size, d.Data, d.Zeros = w.off, w.off-w.zeros, w.zeros
	d.SourceDigest = w.opt.digest(w.digest)
	if !w.opt.NoVerify {
		d.Verified, d.TargetDigest = w.off, d.SourceDigest
	}
}
