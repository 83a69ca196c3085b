package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

const (
	// abortGrace is how long a receive may take to save its resumable state
	// once its stream ended; it waits for the pool to sync.
	abortGrace = time.Minute
	// failGrace is how long a receive that stopped reading may take to say
	// why.
	failGrace = 10 * time.Second
)

// errAborted ends a receive that does not end by the end of its stream.
var errAborted = errors.New("receive was given up")

// ReceiveSink is a running zfs receive, which sees no byte of the stream before
// a zfs.Gate has. Its Write returns the child's failure where another would
// return a broken pipe.
type ReceiveSink struct {
	p    *process
	w    *os.File
	name string
	log  func(string)

	gate    *zfs.Gate
	target  string
	refused atomic.Pointer[zfs.Error] // by the gate
	kill    context.CancelCauseFunc
}

var _ transfer.Sink = (*ReceiveSink)(nil)

// OpenReceive starts to store a stream. It ends with ctx; with this process,
// however that dies, it ends by itself and keeps what arrived.
func (c *CLI) OpenReceive(ctx context.Context, r zfs.ReceiveSpec) (transfer.Sink, error) {
	args, err := zfs.ReceiveArgs(r)
	if err != nil {
		return nil, err
	}
	gate, err := c.gate(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Corrective {
		if err := c.correctable(ctx, r); err != nil {
			return nil, err
		}
	}
	child, w, err := newPipe(pipePair{write: true})
	if err != nil {
		return nil, err
	}
	defer child.Close()
	if takesLargePipe(sysinfo.ZFSVersion(os.DirFS("/"))) {
		growPipe(w)
	}
	properties := slices.Sorted(maps.Keys(r.Set))
	ctx, kill := context.WithCancelCause(ctx)
	p, err := c.start(ctx, start{
		tool: c.zfs, args: args, stdin: child, orphan: true,
		failure: zfs.Failure{Op: zfs.OpReceive, Subject: r.Target, Properties: properties, Rollback: r.Rollback},
	})
	if err != nil {
		kill(nil)
		w.Close()
		return nil, err
	}
	// A writer is woken even where the child cannot die.
	context.AfterFunc(ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })
	return &ReceiveSink{p: p, w: w, gate: gate, target: r.Target, name: "zfs receive " + r.Target, log: c.log, kill: kill}, nil
}

// gate is what judges the stream of a receive.
func (c *CLI) gate(ctx context.Context, r zfs.ReceiveSpec) (*zfs.Gate, error) {
	gate, err := zfs.NewGate(r)
	if err != nil || !r.KeepKey || !r.Arrival.Raw {
		return gate, err
	}
	// What is there has its key, whatever origin the request names; a clone that is
	// not yet shares that of its origin.
	dataset := r.Target
	key, err := c.wrappedKey(ctx, dataset)
	if err == nil && key == "" && r.Origin != "" {
		dataset, _, _ = strings.Cut(r.Origin, "@")
		key, err = c.wrappedKey(ctx, dataset)
	}
	if err != nil {
		err = fmt.Errorf("receive %s: the key of %s, which must stay as it is, cannot be read: %w", r.Target, dataset, err)
		if errors.Is(err, &zfs.Error{Kind: zfs.Permission}) {
			return nil, fault.Failf("let the agent's account read it, there: zfs allow -u USER send "+zfs.CommandLine([]string{dataset}), "%w", err)
		}
		return nil, err
	}
	gate.KeepKey(key)
	return gate, nil
}

// wrappedKey is zfs.WrappedKey of what a dataset has, "" where it has nothing.
func (c *CLI) wrappedKey(ctx context.Context, dataset string) (string, error) {
	l, err := c.List(ctx, zfs.ListQuery{Dataset: dataset, Newest: true, Alone: true})
	if err != nil {
		return "", err
	}
	d := l.Find(dataset)
	if d == nil {
		return "", nil
	}
	latest, ok := d.Latest()
	if !ok {
		return "", nil
	}
	src, err := c.OpenSend(ctx, zfs.SendSpec{Dataset: dataset, To: latest.Name, Flags: zfs.StreamFlags{Raw: true}})
	if err != nil {
		return "", err
	}
	defer src.Close()
	return zfs.WrappedKey(src)
}

// Name is "zfs receive DATASET".
func (s *ReceiveSink) Name() string { return s.name }

// Pipe is the write end of the child's stdin, for splice(2). Who gets EPIPE
// from it must ask Wait why.
func (s *ReceiveSink) Pipe() *os.File { return s.w }

// Withhold is how many bytes of the stream's end must not be written before
// the whole stream was found genuine: without them its last snapshot does not
// come to be.
func (s *ReceiveSink) Withhold() int { return zfs.TailSize }

// Wait returns when the child is gone, with its failure.
func (s *ReceiveSink) Wait() error { return s.p.wait() }

// Passes is how many of the next bytes may go into the pipe unseen.
func (s *ReceiveSink) Passes() int64 { return s.gate.Passes() }

// Passed takes note of n bytes that went into the pipe unseen.
func (s *ReceiveSink) Passed(n int64) { s.gate.Passed(n) }

// Write passes bytes on to zfs receive, once they were judged.
func (s *ReceiveSink) Write(b []byte) (int, error) {
	if err := s.gate.Judge(b); err != nil {
		e := &zfs.Error{Kind: zfs.Unplanned, Op: zfs.OpReceive, Subject: s.target,
			Detail: "the stream is not what was planned: " + err.Error(),
			Hint:   "was the source changed meanwhile? Then the same command plans anew; else do not trust that host"}
		if errors.Is(err, zfs.ErrOtherKey) {
			e.Hint = "if the key was changed on purpose, the administrator of the target allows it for this key's account: --allow receive-rekey=" + s.target
		}
		s.refused.Store(e)
		return 0, e
	}
	n, err := s.w.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrDeadlineExceeded) {
		if failed := s.failure(failGrace); failed != nil {
			return n, failed
		}
	}
	return n, err
}

// failure waits for the child to say why it stopped reading.
func (s *ReceiveSink) failure(within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-s.p.done:
		return s.p.err
	case <-timer.C:
		return nil
	}
}

// Commit ends the stream and waits for zfs receive to have stored it, as long
// as that takes, but not beyond ctx.
func (s *ReceiveSink) Commit(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.kill(context.Cause(ctx)) })
	defer stop()
	defer s.kill(nil)
	_ = s.w.Close() // the child's exit tells whether all arrived
	if err := s.Wait(); err != nil {
		return err
	}
	// A property that could not be set is only warned of.
	for line := range strings.Lines(s.p.stderr.String()) {
		s.log(s.name + ": " + strings.TrimSpace(line))
	}
	return nil
}

// Abort ends the stream early and waits, for a while, for zfs receive to save
// its resumable state. It returns what went wrong beyond the cause and that
// the stream is incomplete.
func (s *ReceiveSink) Abort(cause error) error {
	defer s.kill(nil)
	_ = s.w.Close()
	timer := time.AfterFunc(abortGrace, func() { s.kill(errAborted) })
	defer timer.Stop()
	err := s.Wait()
	switch {
	case s.refused.Load() != nil:
		return nil // what zfs receive says of the stream's end is no news
	case err == nil:
		return fmt.Errorf("%s: the stream was given up, but it was whole and is stored", s.name)
	case errors.Is(err, &zfs.Error{Kind: zfs.Incomplete}):
		return nil
	case cause != nil && !errors.Is(err, errStuck) && errors.Is(err, cause):
		return nil // it ended because of the context that cause is of
	}
	return err
}
