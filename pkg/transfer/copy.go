package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/time/rate"
)

// Copy moves a Source into a Sink on one host, through a ring.
func Copy(ctx context.Context, src Source, sink Sink, opt Options, progress func(Progress)) (Result, error) {
	opt = opt.filled()
	c := &copying{src: src, sink: sink, opt: opt, limit: limiter(opt), queue: newQueue(opt.Buffer, opt.Block),
		reader: meter{name: StageRead}, writer: meter{name: StageWrite}, started: time.Now()}
	return c.run(ctx, progress)
}

type copying struct {
	src     Source
	sink    Sink
	opt     Options
	limit   *rate.Limiter
	queue   *queue
	reader  meter
	writer  meter
	started time.Time
	frames  int64
	digest  string

	once  sync.Once
	cause error
}

func (c *copying) fail(err error) {
	c.once.Do(func() {
		c.cause = err
		c.queue.abort(err)
		_ = c.src.Close()
	})
}

func (c *copying) progress() Progress {
	return Progress{Bytes: c.writer.bytes.Load(), Elapsed: time.Since(c.started), Stages: []Stage{c.reader.stage(), c.writer.stage()}}
}

func (c *copying) run(ctx context.Context, report func(Progress)) (Result, error) {
	finish := watch(c.progress, report, c.opt.Stall, c.fail, func(p Progress) string {
		if p.Stages[0].Bytes > p.Bytes {
			return c.sink.Name() + " took nothing"
		}
		return c.src.Name() + " gave nothing"
	})
	unhook := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	read := make(chan error, 1)
	go func() {
		_, _, err := fill(c.src, c.queue, c.opt.Block, &c.reader)
		if err != nil {
			c.fail(err)
		}
		read <- err
	}()
	tail, err := c.write(ctx)
	if err != nil {
		c.fail(err)
	}
	<-read
	if err == nil && len(tail) > 0 {
		_, err = c.sink.Write(tail)
	}
	if err == nil {
		err = c.sink.Commit(ctx)
	} else {
		c.fail(err)
		err = c.cause
		if said := c.sink.Abort(err); said != nil && errors.As(err, new(*sinkError)) {
			err = said
		}
	}
	unhook()
	finish()
	return Result{Progress: c.progress(), Frames: c.frames, Digest: c.digest}, err
}

func (c *copying) write(ctx context.Context) (tail []byte, err error) {
	h := holder{keep: withhold(c.sink)}
	hash := xxh3.New128()
	t := startTimer()
	for {
		f, err := c.queue.take()
		t.add(&c.writer.in)
		if err != nil {
			return nil, err
		}
		if f == nil {
			c.digest = fmt.Sprintf("%x", hash.Sum128().Bytes())
			return h.held, nil
		}
		p := f.Payload()
		if err := allow(ctx, c.limit, len(p)); err != nil {
			return nil, err
		}
		_, _ = hash.Write(p) // never fails
		t.add(&c.writer.busy)
		if err := h.write(c.sink, p); err != nil {
			return nil, &sinkError{err}
		}
		t.add(&c.writer.out)
		c.frames++
		c.writer.bytes.Add(int64(len(p)))
		c.queue.recycle(f)
	}
}
