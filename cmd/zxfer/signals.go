package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"zxfer/pkg/fault"
)

// echoOf is how long signals that follow the first are taken for the same one:
// timeout(1) sends it to the process and to its group, and a terminal that closes
// may tell the shell, which tells its jobs again.
const echoOf = time.Second

// errSignal is the cause of a context that a signal cancelled. It is a
// cancellation to whoever asks, as where nothing was changed yet.
var errSignal error = signalled{}

type signalled struct{}

func (signalled) Error() string        { return "interrupted by a signal" }
func (signalled) Is(target error) bool { return target == context.Canceled }

// interruptible returns a context that the first SIGINT, SIGTERM or SIGHUP
// cancels, so that a job winds down and keeps what it has. One that comes after
// echoOf finds the signals' default action restored and ends the process at
// once. SIGHUP stays ignored where it was (nohup).
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, signals...)
	go func() {
		select {
		case <-c:
			cancel(errSignal)
			time.AfterFunc(echoOf, func() { signal.Stop(c) })
		case <-ctx.Done():
			signal.Stop(c)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// obeyOnce keeps a second SIGTERM from ending the process, which winds down: a service
// manager that does not want to wait sends SIGKILL.
func obeyOnce() { signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) }

// typed is standard input whose Read ends when the user interrupts, not only when
// something more is typed.
type typed struct {
	ctx context.Context
	in  io.Reader
}

// Read reads in a goroutine, which an interruption leaves behind: the process
// ends then.
func (t typed) Read(p []byte) (int, error) {
	type result struct {
		n   int
		err error
	}
	buf, done := make([]byte, len(p)), make(chan result, 1)
	go func() {
		n, err := t.in.Read(buf)
		done <- result{n, err}
	}()
	select {
	case r := <-done:
		return copy(p, buf[:r.n]), r.err
	case <-t.ctx.Done():
		return 0, fault.Interrupt("nothing was changed", context.Cause(t.ctx))
	}
}

// presenter is what shows a verb's work: report.Text and report.JSON.
type presenter interface {
	Status()       // shows one line about what is going on
	Tick()         // keeps what is shown fresh
	State() string // one line about what is going on, "" where nothing is
}

const (
	tickEvery   = 500 * time.Millisecond // for a presenter
	notifyEvery = 2 * time.Second        // for systemd
)

// live keeps what a presenter shows fresh, has it answer SIGUSR1, and tells systemd,
// until stop is called.
func live(p presenter) (stop func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR1)
	tick, tell := time.NewTicker(tickEvery), time.NewTicker(notifyEvery)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-c:
				p.Status()
			case <-tick.C:
				p.Tick()
			case <-tell.C:
				if state := p.State(); state != "" {
					notify(state)
				}
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(c)
		tick.Stop()
		tell.Stop()
		close(done)
	}
}
