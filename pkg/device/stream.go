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

// Standard is the path of standard input as a source and of standard output as
// a target. Only the process that the user started has them.
const Standard = "-"

// KindStream is the kind of Facts for Standard: a stream, whose size is not
// known before it ended.
const KindStream = "stream"

// Streams are the standard input and output of a process, where it may use them.
type Streams struct {
	In  io.Reader
	Out io.Writer
}

// streamed tells a task of which one end is a stream: it is copied in order,
// as one, by the engine for streams, and cannot be resumed.
func (t Task) streamed() bool {
	return t.Source.Path == Standard || t.Target.Path == Standard
}

// openStream is open for such a task.
func (t Task) openStream(ctx context.Context, link *tcp.Link, std Streams, progress func(transfer.Progress)) (run func() (Result, error), err error) {
	var src transfer.Source
	var sink transfer.Sink
	if t.Read {
		if src, err = t.streamSource(ctx, std); err != nil {
			return nil, err
		}
	}
	if t.Write {
		if sink, err = t.streamSink(ctx, std); err != nil {
			if src != nil {
				err = errors.Join(err, src.Close())
			}
			return nil, err
		}
	}
	return func() (res Result, err error) {
		switch opt := t.Options.Options; {
		case t.Read && t.Write:
			res.Result, err = transfer.Copy(ctx, src, sink, opt, progress)
		case t.Read:
			res.Result, err = transfer.Send(ctx, src, link, opt, progress)
		default:
			res.Result, err = transfer.Receive(ctx, link, sink, opt, progress)
		}
		if src != nil {
			if cerr := src.Close(); err == nil {
				err = cerr
			}
		}
		res.Device = Account{Size: res.Bytes, Block: t.Options.Block, Data: res.Bytes}
		if w, ok := sink.(*deviceWriter); ok && err == nil {
			w.account(&res.Device)
		}
		return res, err
	}, nil
}

func (t Task) streamSource(ctx context.Context, std Streams) (transfer.Source, error) {
	if t.Source.Path == Standard {
		if std.In == nil {
			return nil, errors.New("this end has no standard input")
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
			return nil, errors.New("this end has no standard output")
		}
		return &standardOutput{std.Out}, nil
	}
	if _, _, err := t.again(ctx); err != nil {
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
	return &deviceWriter{Target: dst, opt: t.Options, buf: AlignedBuffer(t.Options.Block)}, nil
}

// standardInput reads a stream that Close must not wait for.
type standardInput struct{ *io.PipeReader }

func newStandardInput(in io.Reader) *standardInput {
	r, w := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, make([]byte, 1<<20))
		_ = w.CloseWithError(err) // nil is the end; it returns nothing else
	}()
	return &standardInput{r}
}

// Name says what is read.
func (*standardInput) Name() string { return "standard input" }

// standardOutput writes a stream.
type standardOutput struct{ io.Writer }

// Commit has nothing to do: what was written is gone.
func (*standardOutput) Commit(context.Context) error { return nil }

// Abort cannot take back what was written.
func (*standardOutput) Abort(error) error { return nil }

// Name says what is written.
func (*standardOutput) Name() string { return "standard output" }

// deviceReader reads a device from its beginning to its end.
type deviceReader struct {
	*Source
	close func() error
	buf   []byte
	left  []byte // of buf
	off   int64
}

// Read reads on.
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

// Close ends reading.
func (r *deviceReader) Close() error { return r.close() }

// deviceWriter writes a stream onto a block device from its beginning, or into
// an image file.
type deviceWriter struct {
	*Target
	opt    Options
	buf    []byte
	n      int // bytes of buf that are filled
	off    int64
	sums   []Sum // of the blocks written, as if none were alone
	zeros  int64
	digest [32]byte
}

// Write writes on; a stream that is larger than the device is an error.
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
		return fault.Failf("name a larger device; the first bytes of the stream are on this one",
			"the stream is longer than %s, which has %d bytes", w.Name(), w.size)
	}
	w.sums = append(w.sums, w.opt.Cut().Sum(p, w.off, math.MaxInt64))
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
	cut := w.opt.Cut()
	if len(w.sums) == 1 {
		// One block that is all has another hash. It is what was read back or
		// written last.
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
		if w.opt.Cut().Sum(p, off, math.MaxInt64) != want {
			return fmt.Errorf("%s: %w: bytes %d to %d", w.Name(), ErrCorrupt, off, off+int64(len(p)))
		}
	}
	return nil
}

// Abort leaves what was written on a device. A file that was made for the stream
// is removed: it can be neither resumed nor told from a whole one.
func (w *deviceWriter) Abort(error) error { return w.Discard() }

func (w *deviceWriter) account(d *Account) {
	d.Size, d.Data, d.Zeros = w.off, w.off-w.zeros, w.zeros
	d.SourceDigest = w.opt.digest(w.digest)
	if !w.opt.NoVerify {
		d.Verified, d.TargetDigest = w.off, d.SourceDigest
	}
}
