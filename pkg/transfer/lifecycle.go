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

// Life is the one course that every transfer takes, whatever moves. It starts
// and is watched, and fails where nothing moves any more; the first failure is
// the cause, at which all that waits is unwound; what was moved takes effect
// only if there was none; and the other end is told how it went. An engine fills
// it in and calls Run. What may be nil says so.
type Life struct {
	// Stall ends a transfer that moved nothing for this long.
	Stall time.Duration
	// Report is told how far it is, about twice a second and once at the end;
	// may be nil.
	Report func(Progress)
	// Over is this end of a link; nil within one host.
	Over Half

	// Move does all the work. It returns when nothing of it runs any more, with
	// what failed; what fails beside it calls Fail.
	Move func(ctx context.Context) error
	// Unwind ends all that waits while Move is under way, once; may be nil.
	Unwind func(cause error)
	// Commit makes what was moved take effect; may be nil. Its context is the
	// caller's.
	Commit func(ctx context.Context) error
	// Abandon gives up, after Move and Unwind have returned, and tells what
	// the target itself has to say; may be nil. Target is its name.
	Abandon func() error
	Target  string

	// Account is how much was moved, and what each stage did in so long a life.
	Account func(life time.Duration) (bytes int64, stages []Stage)
	// Moved is anything that changes while the transfer gets on.
	Moved func() int64
	// Idle tells that this end has nothing to do, which is no stall; nil where
	// it always has.
	Idle func() bool
	// Stalled says what does not get on: with network, something that is known
	// better at the other end.
	Stalled func() (reason string, network bool)

	started time.Time
	startUsage  sysinfo.Usage
	caller  context.Context
	fail    context.CancelCauseFunc
}

// Half is one end of a link, as a Life sees it: *Outgoing or *Incoming.
type Half interface {
	start(l *Life)
	// interrupt ends what waits for the network.
	interrupt()
	// end tells the other end how it went. The link is closed afterwards.
	end(err error)
	tcpLink() *tcp.Link
}

// Fail gives up with a cause; only the first one counts.
func (l *Life) Fail(cause error) { l.fail(cause) }

// Run lives it. The error is the cause, without the mark of a [TargetError].
func (l *Life) Run(parent context.Context) (res Result, err error) {
	ctx, fail := context.WithCancelCause(parent)
	l.started, l.startUsage, l.caller, l.fail = time.Now(), usage(), parent, fail
	unwound := make(chan struct{})
	keep := context.AfterFunc(ctx, func() {
		defer close(unwound)
		cause := context.Cause(ctx)
		if l.Over != nil {
			l.Over.interrupt()
			if errors.Is(cause, ErrStall) {
				// At once: what a device or ZFS hangs does not end before
				// that answers, which may be never.
				l.notifyPeer(cause)
			}
		}
		if l.Unwind != nil {
			l.Unwind(unmark(cause))
		}
	})
	stop := l.watch()
	if l.Over != nil {
		l.Over.start(l)
	}
	if err := l.Move(ctx); err != nil {
		fail(err)
	}
	stop() // a long commit is no stall
	if !keep() {
		<-unwound
		err = l.abandon(context.Cause(ctx))
	} else if l.Commit != nil {
		// All of it is here and verified; from here on the target decides.
		err = unmark(l.Commit(parent))
	}
	if l.Over != nil {
		l.Over.end(err)
		_ = l.Over.tcpLink().Close()
		for _, c := range l.Over.tcpLink().Conns() {
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

// abandon joins the cause of a failure with what the target says when it is
// given up. One whose Write fails often says only then why.
func (l *Life) abandon(cause error) error {
	var targetErr error
	if l.Abandon != nil {
		targetErr = l.Abandon()
	}
	switch {
	case targetErr == nil:
		return unmark(cause)
	case errors.As(cause, new(*TargetError)):
		return targetErr
	}
	return fmt.Errorf("%w; and %s: %w", unmark(cause), l.Target, targetErr)
}

// notifyPeer tells the other end why this one gives up, unless that said so first,
// the connections are broken, or the caller gave up, which may not be delayed.
func (l *Life) notifyPeer(err error) {
	if errors.As(err, new(*PeerError)) || errors.Is(err, tcp.ErrCut) && !errors.Is(err, ErrStall) || l.caller.Err() != nil {
		return
	}
	l.Over.tcpLink().Abort(err)
}

// usage is that of this host.
func usage() sysinfo.Usage { return sysinfo.ReadUsage(os.DirFS("/")) }

func (l *Life) progress() Progress {
	p := Progress{Elapsed: time.Since(l.started)}
	p.Bytes, p.Stages = l.Account(p.Elapsed)
	now := usage()
	busy, _ := now.Since(l.startUsage)
	p.Processors, p.Used = now.Processors(), time.Duration(busy*float64(p.Elapsed))
	if l.Over != nil {
		n := l.Over.tcpLink().Network()
		p.Network = &n
	}
	return p
}

// progressInterval is how often a running transfer reports.
const progressInterval = 500 * time.Millisecond

// watch begins to report progress, and fails a transfer that stalls. stop ends
// it; the last report is Run's.
func (l *Life) watch() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(min(progressInterval, max(l.Stall/8, time.Millisecond)))
		defer tick.Stop()
		last, since := l.Moved(), time.Now()
		reported := time.Now()
		for {
			select {
			case <-quit:
				return
			case now := <-tick.C:
				if l.Over != nil {
					l.Over.tcpLink().WatchLosses()
				}
				if m := l.Moved(); m != last || l.Idle != nil && l.Idle() {
					last, since = m, now
				} else if now.Sub(since) >= l.Stall {
					// The end whose source or target hangs knows more: it
					// speaks first.
					subject, network := l.Stalled()
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
