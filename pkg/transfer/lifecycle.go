package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport/tcp"
)

// Engine moves the data of one transfer between its ends in this process: a stream, or the blocks of a device.
type Engine interface {
	// Move does the work and returns its error. All of its goroutines have ended when it returns. They call fail for
	// errors of their own.
	Move(ctx context.Context, fail func(error)) error
	// Unwind unblocks Move after a failure. It is called once, while Move still runs.
	Unwind(cause error)
	// Commit makes the moved data take effect. It gets the context given to Run.
	Commit(ctx context.Context) error
	// Abandon aborts the target after Move and Unwind have returned. It returns the name of the target, and the
	// target's own error or nil.
	Abandon() (target string, err error)
	// Account returns the state of a transfer that has run for life.
	Account(life time.Duration) State
	// Stalled names the part that makes no progress. network means that the other end knows the reason better.
	Stalled() (reason string, network bool)
}

// State is what an engine has done so far.
type State struct {
	Bytes  int64 // moved
	Moved  int64 // changes while the transfer makes progress
	Worked int64 // bytes that a WorkingSource processed, which also count as progress
	Idle   bool  // this end has nothing to do, which is not a stall
	Stages []Stage
}

// Lifecycle runs one transfer: it starts and watches the engine, unwinds it at the first failure, commits or
// abandons the result, and reports the outcome to the other end.
type Lifecycle struct {
	Engine Engine
	// Stall is how long a transfer may make no progress before it fails.
	Stall time.Duration
	// Report receives the progress about twice a second and once at the end; may be nil.
	Report func(Progress)
	// End is this end of a link; nil for a copy on one host.
	End LinkEnd

	started    time.Time
	startUsage sysinfo.Usage
	caller     context.Context
	fail       context.CancelCauseFunc
}

// LinkEnd is one end of a link: *Outgoing or *Incoming.
type LinkEnd interface {
	start(l *Lifecycle)
	// interrupt unblocks reads and writes of the network.
	interrupt()
	// end reports the outcome to the other end. The caller closes the link afterwards.
	end(err error)
	tcpLink() *tcp.Link
}

// Run runs the transfer. The error is the cause, without the mark of a [TargetError].
func (l *Lifecycle) Run(parent context.Context) (res Result, err error) {
	ctx, fail := context.WithCancelCause(parent)
	l.started, l.startUsage, l.caller, l.fail = time.Now(), usage(), parent, fail
	unwound := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		cause := context.Cause(ctx)
		if l.End != nil {
			l.End.interrupt()
			if errors.Is(cause, ErrStall) {
				// Notify the peer now: if a device or ZFS hangs, Move may never return.
				l.notifyPeer(cause)
			}
		}
		l.Engine.Unwind(unmark(cause))
	})
	stop := l.watch()
	if l.End != nil {
		l.End.start(l)
	}
	// Only the first cause counts.
	if err := l.Engine.Move(ctx, fail); err != nil {
		fail(err)
	}
	stop() // a long commit is not a stall
	if !keep() {
		<-unwound
		err = l.abandon(context.Cause(ctx))
	} else {
		// All data is here and verified. The target decides from here on.
		err = unmark(l.Engine.Commit(parent))
	}
	if l.End != nil {
		l.End.end(err)
		_ = l.End.tcpLink().Close()
		for _, c := range l.End.tcpLink().Conns() {
			res.WireBytes += c.WireBytes()
		}
	}
	fail(nil)
	res.Progress = l.progress()
	if l.Report != nil {
		l.Report(res.Progress)
	}
	return res, err
}

// abandon joins the cause of a failure with the error of the aborted target. Often only that
// error explains a failed Write.
func (l *Lifecycle) abandon(cause error) error {
	target, targetErr := l.Engine.Abandon()
	switch {
	case targetErr == nil:
		return unmark(cause)
	case errors.As(cause, new(*TargetError)):
		return targetErr
	}
	return fmt.Errorf("%w; and %s: %w", unmark(cause), target, targetErr)
}

// notifyPeer sends the cause to the other end. It does nothing if the peer reported the cause,
// if the connections are broken, or if the caller canceled, which must not be delayed.
func (l *Lifecycle) notifyPeer(err error) {
	if errors.As(err, new(*PeerError)) || errors.Is(err, tcp.ErrConnectionLost) && !errors.Is(err, ErrStall) || l.caller.Err() != nil {
		return
	}
	l.End.tcpLink().Abort(err)
}

// usage returns the processor usage of this host.
func usage() sysinfo.Usage { return sysinfo.ReadUsage(os.DirFS("/")) }

func (l *Lifecycle) progress() Progress {
	p := Progress{Elapsed: time.Since(l.started)}
	now := l.Engine.Account(p.Elapsed)
	p.Bytes, p.Worked, p.Stages = now.Bytes, now.Worked, now.Stages
	cpu := usage()
	busy, _ := cpu.Since(l.startUsage)
	p.Processors, p.Used = cpu.Processors(), time.Duration(busy*float64(p.Elapsed))
	if l.End != nil {
		n := l.End.tcpLink().Network()
		p.Network = &n
	}
	return p
}

// progressInterval is how often a running transfer reports its progress.
const progressInterval = 500 * time.Millisecond

// watch reports progress and fails a transfer that stalls, until stop is called. Run sends the
// last report.
func (l *Lifecycle) watch() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(min(progressInterval, max(l.Stall/8, time.Millisecond)))
		defer tick.Stop()
		state := func(now time.Time) State { return l.Engine.Account(now.Sub(l.started)) }
		since := time.Now()
		reported, last := since, state(since)
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				if l.End != nil {
					l.End.tcpLink().WatchLosses()
				}
				if s := state(now); s.Moved+s.Worked != last.Moved+last.Worked || s.Idle {
					last, since = s, now
				} else if now.Sub(since) >= l.Stall {
					// The end whose source or target hangs knows more, so it reports first.
					subject, network := l.Engine.Stalled()
					if !network || now.Sub(since) >= l.Stall+l.Stall/4 {
						l.fail(stalled(subject, network, l.Stall))
						return
					}
				}
				if l.Report != nil && now.Sub(reported) >= progressInterval-progressInterval/10 {
					reported = now
					l.Report(l.progress())
				}
			}
		}
	}()
	return func() { close(quit); <-done }
}

// PeerError is a failure that the other end reported: of its source, its sink or the received
// bytes.
type PeerError struct{ Text string }

func (e *PeerError) Error() string { return "the other host failed: " + e.Text }

// ErrStall means that a transfer made no progress for Options.Stall. The error names the part
// that stalled. If that is the network, it also matches tcp.ErrConnectionLost.
var ErrStall = errors.New("no data was transferred")

// ErrTotalsMismatch means that the sender's authenticated account does not match the received
// stream, although every frame was valid.
var ErrTotalsMismatch = errors.New("the received data does not match the end of the stream")

func stalled(subject string, network bool, after time.Duration) error {
	err := fmt.Errorf("%w for %s: %s", ErrStall, after, subject)
	if network {
		return fmt.Errorf("%w: %w", tcp.ErrConnectionLost, err)
	}
	return err
}

// TargetError marks an error of the target itself. If aborting the target returns another
// error, that one replaces it.
type TargetError struct{ Err error }

func (e *TargetError) Error() string { return e.Err.Error() }

func (e *TargetError) Unwrap() error { return e.Err }

// sourceError marks an error of a Source.
type sourceError struct{ error }

func (e *sourceError) Unwrap() error { return e.error }

// unmark removes the mark of a TargetError or sourceError.
func unmark(err error) error {
	switch e := err.(type) {
	case *TargetError:
		return e.Err
	case *sourceError:
		return e.error
	}
	return err
}
