package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

// Standard is the path of standard input as a source and of standard output as
// a target. Only the Site of the process that the user started has them.
const Standard = "-"

// KindStream is the kind of Facts for Standard: a stream, whose size is not
// known before it ended.
const KindStream = "stream"

// SetStandard gives the Site the standard input and output of its process.
func (l *Local) SetStandard(in io.Reader, out io.Writer) { l.stdin, l.stdout = in, out }

// streamed tells a task of which one end is a stream: it is copied in order,
// as one, by the engine for streams, and cannot be resumed.
func (t DeviceTask) streamed() bool {
	return t.Source.Path == Standard || t.Target.Path == Standard
}

// transferStream is transferDevice for such a task.
func (l *Local) transferStream(ctx context.Context, t DeviceTask, link *wire.Link, progress func(transfer.Progress)) (res transfer.Result, err error) {
	fail := func(err error) (transfer.Result, error) {
		if link != nil {
			link.Abort(err)
		}
		return transfer.Result{}, err
	}
	var src transfer.Source
	var sink transfer.Sink
	if t.Read {
		if src, err = l.streamSource(ctx, t); err != nil {
			return fail(err)
		}
		defer src.Close()
	}
	if t.Write {
		if sink, err = l.streamSink(ctx, t); err != nil {
			return fail(err)
		}
	}
	switch {
	case t.Read && t.Write:
		res, err = transfer.Copy(ctx, src, sink, t.Options.Options, progress)
	case t.Read:
		res, err = transfer.Send(ctx, src, link, t.Options.Options, progress)
	default:
		res, err = transfer.Receive(ctx, link, sink, t.Options.Options, progress)
	}
	res.Device = &transfer.DeviceResult{Size: res.Bytes, Block: t.Options.Block, Data: res.Bytes}
	if w, ok := sink.(*deviceWriter); ok && err == nil {
		w.account(res.Device)
	}
	return res, err
}

func (l *Local) streamSource(ctx context.Context, t DeviceTask) (transfer.Source, error) {
	if t.Source.Path == Standard {
		if l.stdin == nil {
			return nil, errors.New("this end has no standard input")
		}
		return newStandardInput(l.stdin), nil
	}
	src, err := openSource(ctx, t)
	if err != nil {
		return nil, err
	}
	return &deviceReader{src: src, buf: device.AlignedBuffer(t.Options.Block)}, nil
}

func (l *Local) streamSink(ctx context.Context, t DeviceTask) (transfer.Sink, error) {
	if t.Target.Path == Standard {
		if l.stdout == nil {
			return nil, errors.New("this end has no standard output")
		}
		return &standardOutput{l.stdout}, nil
	}
	now, err := device.Inspect(ctx, t.Target.Path) // time has passed since the plan
	if err != nil {
		return nil, err
	}
	if err := refusals(t, now, DeviceState{}); err != nil {
		return nil, err
	}
	size := t.Target.Size
	if t.Target.IsFile() {
		size = 0 // it grows with the stream
	}
	dst, err := device.OpenTarget(ctx, t.Target, size, device.Options{Sparse: t.Sparse})
	if err != nil {
		return nil, err
	}
	return &deviceWriter{dst: dst, name: t.Target.Path, size: size, grows: t.Target.IsFile(), verify: !t.Options.NoVerify, buf: device.AlignedBuffer(t.Options.Block)}, nil
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
	src  transfer.BlockSource
	buf  []byte
	left []byte // of buf
	off  int64
}

// Read reads on.
func (r *deviceReader) Read(p []byte) (int, error) {
	if len(r.left) == 0 {
		n := min(int64(len(r.buf)), r.src.Size()-r.off)
		if n == 0 {
			if err := r.src.Unchanged(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		got, err := r.src.ReadAt(r.buf[:n], r.off)
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
func (r *deviceReader) Close() error { return r.src.Close() }

// Name is the device's.
func (r *deviceReader) Name() string { return r.src.Name() }

// deviceWriter writes a stream onto a block device from its beginning, or into
// an image file.
type deviceWriter struct {
	dst    *device.Target
	name   string
	size   int64 // of the device
	grows  bool  // a file, which has no size of its own
	verify bool
	buf    []byte
	n      int // bytes of buf that are filled
	off    int64
	sums   []device.CV // of the blocks written, as if none were alone
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
	case w.grows:
		if err := w.dst.Grow(end); err != nil {
			return err
		}
	case end > w.size:
		return fault.Failf("name a larger device; the first bytes of the stream are on this one",
			"the stream is longer than %s, which has %d bytes", w.name, w.size)
	}
	w.sums = append(w.sums, device.LeafHash(p, w.off, math.MaxInt64))
	var err error
	if device.IsZero(p) {
		err = w.dst.Zero(w.off, int64(len(p)))
		w.zeros += int64(len(p))
	} else {
		_, err = w.dst.WriteAt(p, w.off)
	}
	w.off, w.n = w.off+int64(len(p)), 0
	return err
}

// Commit stores the stream and reads it back.
func (w *deviceWriter) Commit(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, w.dst.Discard())
		} else {
			err = w.dst.Close()
		}
	}()
	tail := w.n
	alone := w.off == 0
	if alone { // a device of one block has no other hash than its digest
		w.digest = device.LeafHash(w.buf[:tail], 0, int64(tail))
	}
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.dst.Sync(); err != nil {
		return err
	}
	if w.verify {
		if err := w.readBack(ctx); err != nil {
			return err
		}
	}
	if !alone {
		if len(w.sums) == 1 {
			w.digest = device.LeafHash(w.buf, 0, w.off) // what was read back or written last
		} else {
			w.digest = device.Root(w.sums)
		}
	}
	return w.dst.Commit()
}

func (w *deviceWriter) readBack(ctx context.Context) error {
	if err := w.dst.DropCache(); err != nil {
		return err
	}
	for i, want := range w.sums {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		off := int64(i) * int64(len(w.buf))
		p := w.buf[:min(int64(len(w.buf)), w.off-off)]
		if n, err := w.dst.ReadAt(p, off); n < len(p) {
			return fmt.Errorf("%s: read back at byte %d: %w", w.name, off, errors.Join(err, io.ErrUnexpectedEOF))
		}
		if device.LeafHash(p, off, math.MaxInt64) != want {
			return fmt.Errorf("%s: %w: bytes %d to %d", w.name, transfer.ErrCorrupt, off, off+int64(len(p)))
		}
	}
	return nil
}

// Abort leaves what was written on a device. A file that was made for the stream
// is removed: it can be neither resumed nor told from a whole one.
func (w *deviceWriter) Abort(error) error { return w.dst.Discard() }

// Name is the device's.
func (w *deviceWriter) Name() string { return w.name }

func (w *deviceWriter) account(d *transfer.DeviceResult) {
	d.Size, d.Data, d.Zeros = w.off, w.off-w.zeros, w.zeros
	d.SourceDigest = fmt.Sprintf("%x", w.digest)
	if w.verify {
		d.Verified, d.TargetDigest = w.off, d.SourceDigest
	}
}

// refusals is the error of what forbids to write to a target, nil for nothing.
func refusals(t DeviceTask, now device.Facts, state DeviceState) error {
	return finding.Refusal(finding.Failed(DeviceProblems(t, now, state)))
}
