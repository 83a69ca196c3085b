package transfer

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"zxfer/pkg/transport/tcp"
)

// Receive stores a stream from a link in a Sink. It commits the Sink only if the sender's
// account matches the stored bytes, and otherwise aborts it. The error is the cause: the Sink's
// own, a *PeerError, tcp.ErrCut, tcp.ErrTampered, ErrMiscounted, ErrStall, or the context's.
// Receive reports the outcome to the sender and closes the link.
//
// progress may be nil. Receive calls it about twice a second and once at the end.
func Receive(ctx context.Context, link *tcp.Link, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.Filled()
	r := &receiverState{writer: newWriter(sink, opt), link: link, in: NewIncoming(link), hash: xxh3.New128()}
	r.beforeWrite = func(_ context.Context, p *piece) error {
		_, err := r.hash.Write(p.block.Payload())
		return err
	}
	r.decompress = newDecompressStage(opt, r.ring)
	if p, ok := sink.(PipeSink); ok && link.Mode() == tcp.Plain && len(link.Conns()) == 1 {
		full := new(tcp.WaitTimer)
		r.pipe, r.spliced = p, full
		r.in.meter.waitOut, r.write.waitIn = WaitTimers{full}.mean, exceptWait(full)
	}
	r.life = &Life{Stall: opt.Stall, Report: progress, Over: r.in, Move: r.move, Unwind: r.abort, Commit: sink.Commit,
		Abandon: func() error { return r.sinkErr }, Target: sink.Name(), Account: r.account, Stalled: r.stalled,
		Moved: func() int64 { return r.in.meter.bytes.Load() + r.write.bytes.Load() }}
	res, err := r.life.Run(ctx)
	res.Frames, res.Digest = int64(r.frames), r.digest
	return res, err
}

// receiverState is the state of one Receive.
type receiverState struct {
	*writer
	link       *tcp.Link
	life       *Life
	in         *Incoming
	decompress *decompressStage
	hash       *xxh3.Hasher128
	digest     string

	pipe       PipeSink       // nil except on the zero-copy path
	spliced    *tcp.WaitTimer // zero-copy path: waits for room in the pipe
	inspectBuf []byte         // zero-copy path: bytes copied to the sink
}

// move stores the stream in the sink, and its tail once the end is verified. All of its
// goroutines have ended when it returns.
func (r *receiverState) move(ctx context.Context) error {
	var account tcp.Account
	var err error
	if r.pipe != nil {
		account, err = r.splice()
	} else {
		account, err = r.copy(ctx)
	}
	if err != nil {
		return err
	}
	if err := r.verify(account); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return r.end()
}

// copy receives from all connections into the ring and writes from the ring to the sink.
func (r *receiverState) copy(ctx context.Context) (tcp.Account, error) {
	var account tcp.Account
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		var err error
		if account, err = r.fill(ctx); err != nil {
			r.life.Fail(err)
		}
	}()
	err := r.store(ctx)
	if err != nil {
		r.life.Fail(err)
	}
	<-closed
	r.decompress.stop()
	if ctx.Err() != nil {
		return account, context.Cause(ctx)
	}
	return account, err
}

// fill puts received frames into the ring and then closes it. If the stream ends early, the
// frames received in order are genuine and are stored, so that a resume need not send them
// again.
func (r *receiverState) fill(ctx context.Context) (tcp.Account, error) {
	a, early, err := r.in.Receive(ctx, r.ring.get, r.take, r.ring.truncate)
	switch {
	case err != nil:
		return a, err
	case early != nil:
		r.ring.truncate(early)
		return a, nil
	case a.StreamBytes != a.Bytes || a.StreamFrames != a.Frames:
		return a, fmt.Errorf("%w: %d bytes in %d frames arrived, %d in %d were sent", ErrMiscounted, a.StreamBytes, a.StreamFrames, a.Bytes, a.Frames)
	}
	return a, r.ring.close(a.Frames, nil)
}

// take puts a frame into the ring.
func (r *receiverState) take(ctx context.Context, c *tcp.Conn, h tcp.Header, b *tcp.Block) error {
	if h.Flags&^tcp.Compressed != 0 {
		return fmt.Errorf("%w: a frame of a device in a stream", tcp.ErrTampered)
	}
	r.in.Took(h)
	full := r.in.Full[c.Stream()]
	p := &piece{block: b, header: h}
	if h.Flags&tcp.Compressed != 0 {
		if err := r.decompress.add(ctx, p, full); err != nil {
			return err
		}
	}
	return r.ring.put(p, full)
}

// verify compares the sender's account with the stored bytes.
func (r *receiverState) verify(a tcp.Account) error {
	if got := uint64(r.write.bytes.Load()); a.Bytes != got || a.Frames != r.frames {
		return fmt.Errorf("%w: %d bytes in %d frames arrived, %d in %d were sent", ErrMiscounted, got, r.frames, a.Bytes, a.Frames)
	}
	if r.pipe != nil {
		return nil
	}
	sum := r.hash.Sum128().Bytes()
	if a.Digested && a.Digest != sum {
		return fmt.Errorf("%w: digest %x arrived, %x was sent", ErrMiscounted, sum, a.Digest)
	}
	r.digest = hex.EncodeToString(sum[:])
	return nil
}

func (r *receiverState) account(life time.Duration) (int64, []Stage) {
	stages := []Stage{r.in.Stage(life)}
	if r.decompress.meter.bytes.Load() > 0 {
		stages = append(stages, r.decompress.meter.stage(life))
	}
	return r.write.bytes.Load(), append(stages, r.write.stage(life))
}

func (r *receiverState) stalled() (reason string, network bool) {
	sink := r.in.meter.bytes.Load() > r.write.bytes.Load()
	if r.pipe != nil {
		sink = r.spliced.Running()
	}
	if sink {
		return r.sink.Name() + " took nothing", false
	}
	return "the network or the other end gave nothing", true
}
