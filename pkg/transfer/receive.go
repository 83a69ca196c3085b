package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"

	"zxfer/pkg/wire"
)

// aliveEvery is how often a receiver tells that it is at work, so that a
// sender can tell a long commit from a dead peer.
const aliveEvery = 5 * time.Second

// Receive moves a stream from a link into a Sink. The Sink is committed only
// after the sender's end matched what arrived, and aborted in any other case.
// The link is closed at the end.
func Receive(ctx context.Context, link *wire.Link, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	r := &receiving{sink: sink, link: link, opt: opt, queue: newQueue(opt.Buffer, opt.Block),
		receiver: meter{name: StageReceive, workers: len(link.Conns())}, expander: meter{name: StageExpand},
		writer: meter{name: StageWrite}, started: time.Now(), stop: make(chan struct{})}
	var err error
	if r.decoder, err = newDecoder(); err != nil {
		_ = link.Close()
		return Result{}, errors.Join(err, sink.Abort(err))
	}
	defer r.decoder.Close()
	return r.run(ctx, progress)
}

type receiving struct {
	sink     Sink
	link     *wire.Link
	opt      Options
	queue    *queue
	receiver meter
	expander meter
	writer   meter
	wired    meter
	started  time.Time

	frames  uint64
	digest  string
	decoder *zstd.Decoder

	ackMu sync.Mutex // orders control frames to the sender
	once  sync.Once
	cause error
	stop  chan struct{} // closed by the first failure
}

func (r *receiving) fail(err error) {
	r.once.Do(func() {
		r.cause = err
		r.queue.abort(err)
		// Tell the sender before its connection breaks: it then knows why.
		_ = r.link.Conns()[0].SetWriteDeadline(time.Now().Add(2 * time.Second))
		r.say(wire.Ack, err.Error())
		close(r.stop)
		_ = r.link.Close()
	})
}

// say sends a control frame to the sender; one that does not get through
// shows as a cut there.
func (r *receiving) say(kind wire.Kind, text string) {
	r.ackMu.Lock()
	defer r.ackMu.Unlock()
	_ = writeControl(r.link.Conns()[0], kind, text)
}

func (r *receiving) progress() Progress {
	p := Progress{Bytes: r.writer.bytes.Load(), Elapsed: time.Since(r.started)}
	p.Stages = []Stage{r.receiver.stage()}
	if r.expander.bytes.Load() > 0 {
		p.Stages = append(p.Stages, r.expander.stage())
	}
	p.Stages = append(p.Stages, r.writer.stage())
	return p
}

func (r *receiving) run(ctx context.Context, report func(Progress)) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	finish := watch(r.progress, report, r.opt.Stall, func(err error) { r.fail(err) }, func(p Progress) string {
		if p.Stages[0].Bytes > p.Bytes {
			return r.sink.Name() + " took nothing"
		}
		return "the sender or the network gave nothing"
	})
	unhook := context.AfterFunc(ctx, func() { r.fail(context.Cause(ctx)) })
	quiet := r.keepAlive()

	err := r.move()
	if err == nil {
		// From here on the stream is whole and verified; only the sink decides.
		err = r.sink.Commit(ctx)
		if err == nil {
			quiet()
			unhook()
			r.say(wire.Ack, "")
			r.awaitClose()
		} else {
			r.fail(err)
		}
	} else {
		r.fail(err)
		err = r.cause
		if said := r.sink.Abort(err); said != nil && explains(said, err) {
			err = said
		}
	}
	quiet()
	unhook()
	finish()
	_ = r.link.Close()
	return Result{Progress: r.progress(), WireBytes: r.wired.bytes.Load(), Frames: int64(r.frames), Digest: r.digest}, err
}

// explains tells whether what the sink said while it was aborted is the cause
// of the failure: a receive that died makes writing to it fail, while a cut
// makes any receive complain of an incomplete stream.
func explains(said, cause error) bool {
	var w *sinkError
	return errors.As(cause, &w)
}

// sinkError marks an error of the Sink's Write.
type sinkError struct{ error }

func (e *sinkError) Unwrap() error { return e.error }

// keepAlive tells the sender now and then that this end is at work.
func (r *receiving) keepAlive() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(aliveEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.say(wire.Alive, "")
			case <-r.stop:
				return
			case <-quit:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit); <-done })
}

// awaitClose gives the sender time to read the acknowledgement: closing a
// connection with unread bytes in it would reset it.
func (r *receiving) awaitClose() {
	c := r.link.Conns()[0]
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, _ = c.ReadHeader(wire.NewFrame(0)) // the end of the connection
}

// move brings the stream into the sink, all but its withheld tail, and then,
// once the end matched, the tail.
func (r *receiving) move() error {
	if p, ok := r.sink.(PipeSink); ok && r.link.Mode() == wire.Plain && len(r.link.Conns()) == 1 {
		return r.splice(p)
	}
	conns := r.link.Conns()
	ends := make([]ending, len(conns))
	errs := make(chan error, len(conns))
	for i, c := range conns {
		go func() {
			err := r.receive(c, &ends[i])
			if err != nil {
				r.queue.abort(err)
			}
			errs <- err
		}()
	}
	arrived := make(chan error, 1)
	go func() {
		var first error
		for range conns {
			if err := <-errs; err != nil && first == nil {
				first = err
			}
		}
		if first == nil {
			if first = checkCounts(ends); first != nil {
				r.queue.abort(first)
			} else {
				r.queue.close(ends[0].Frames)
			}
		}
		arrived <- first
	}()
	tail, err := r.write()
	if err != nil {
		r.queue.abort(err)
		if errors.As(err, new(*sinkError)) {
			return err
		}
	}
	if cut := <-arrived; cut != nil {
		return cut
	}
	if err != nil {
		return err
	}
	return r.release(tail, ends[0])
}

// checkCounts compares the connections' ends with each other.
func checkCounts(ends []ending) error {
	var frames uint64
	for _, e := range ends {
		frames += e.Connection
		if e.Frames != ends[0].Frames || e.Bytes != ends[0].Bytes || e.Digest != ends[0].Digest {
			return fmt.Errorf("%w: connections disagree", ErrMiscounted)
		}
	}
	if frames != ends[0].Frames {
		return fmt.Errorf("%w: got %d frames, expected %d", ErrMiscounted, frames, ends[0].Frames)
	}
	return nil
}

// receive reads frames off one connection until its end.
func (r *receiving) receive(c *wire.Conn, end *ending) error {
	var count uint64
	t := startTimer()
	for {
		f := r.queue.frame()
		n, err := c.ReadHeader(f)
		if err == nil {
			err = c.ReadBody(f, n)
		}
		t.add(&r.receiver.in)
		if err == nil {
			err = c.Check(f)
		}
		t.add(&r.receiver.busy)
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.Data:
			count++
			r.receiver.bytes.Add(int64(f.Raw))
			r.wired.bytes.Add(int64(n) + wire.HeaderSize + wire.TagSize)
			compressed := f.Flags&wire.Compressed != 0
			if f, err = r.expand(f); err != nil {
				return err
			}
			if compressed {
				t.add(&r.expander.busy)
			}
			if err := r.queue.put(f); err != nil {
				return err
			}
			t.add(&r.receiver.out)
		case wire.End:
			if *end, err = parseEnding(f); err != nil {
				return err
			}
			if end.Connection != count {
				return fmt.Errorf("%w: got %d frames on a connection, expected %d", ErrMiscounted, count, end.Connection)
			}
			return nil
		case wire.Abort:
			return &PeerError{string(f.Payload())}
		default:
			return fmt.Errorf("%w: unexpected frame from the sender", wire.ErrTampered)
		}
	}
}

// write puts frames into the sink in order and returns the tail that it holds
// back.
func (r *receiving) write() (tail []byte, err error) {
	h := holder{keep: withhold(r.sink)}
	hash := xxh3.New128()
	t := startTimer()
	for {
		f, err := r.queue.take()
		t.add(&r.writer.in)
		if err != nil {
			return nil, err
		}
		if f == nil {
			r.digest = fmt.Sprintf("%x", hash.Sum128().Bytes())
			return h.held, nil
		}
		p := f.Payload()
		_, _ = hash.Write(p) // never fails
		t.add(&r.writer.busy)
		if err := h.write(r.sink, p); err != nil {
			return nil, &sinkError{err}
		}
		t.add(&r.writer.out)
		r.frames++
		r.writer.bytes.Add(int64(len(p)))
		r.queue.recycle(f)
	}
}

// release checks the sender's end against what arrived and hands over the
// tail.
func (r *receiving) release(tail []byte, e ending) error {
	switch {
	case e.Bytes != r.writer.bytes.Load(), e.Frames != r.frames:
		return fmt.Errorf("%w: got %d bytes in %d frames, expected %d in %d", ErrMiscounted, r.writer.bytes.Load(), r.frames, e.Bytes, e.Frames)
	case e.Digest != "" && r.digest != "" && e.Digest != r.digest:
		return fmt.Errorf("%w: digest %s, expected %s", ErrMiscounted, r.digest, e.Digest)
	}
	if len(tail) == 0 {
		return nil
	}
	if _, err := r.sink.Write(tail); err != nil {
		return &sinkError{err}
	}
	return nil
}

func withhold(s Sink) int {
	if w, ok := s.(Withholder); ok {
		return w.Withhold()
	}
	return 0
}

// holder passes bytes on but for the last keep.
type holder struct {
	keep int
	held []byte
}

// write writes what is certainly not among the last bytes of the stream.
func (h *holder) write(w interface{ Write([]byte) (int, error) }, p []byte) error {
	if len(p) < h.keep {
		h.held = append(h.held, p...)
		if extra := len(h.held) - h.keep; extra > 0 {
			if _, err := w.Write(h.held[:extra]); err != nil {
				return err
			}
			h.held = append(h.held[:0], h.held[extra:]...)
		}
		return nil
	}
	if len(h.held) > 0 {
		if _, err := w.Write(h.held); err != nil {
			return err
		}
	}
	body := p[:len(p)-h.keep]
	if len(body) > 0 {
		if _, err := w.Write(body); err != nil {
			return err
		}
	}
	h.held = append(h.held[:0], p[len(body):]...)
	return nil
}
