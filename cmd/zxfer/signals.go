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

// signalEcho is the time within which further signals count as the same one. timeout(1) signals the
// process and its group, and a closing terminal may signal the shell, which signals its jobs
// again.
const signalEcho = time.Second

// errSignal is the cause of a context that a signal cancelled. It matches context.Canceled.
var errSignal error = signalled{}

type signalled struct{}

func (signalled) Error() string { return "interrupted by a signal" }

func (signalled) Is(target error) bool { return target == context.Canceled }

// withSignals returns a context that the first SIGINT, SIGTERM or SIGHUP cancels, so that a job
// ends in order and keeps its state. A second signal, later than echoOf, ends the process
// immediately. An ignored SIGHUP (nohup) stays ignored.
func withSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	return withSignalsFor(ctx, signalEcho)
}

// withSignalsFor is withSignals with another signalEcho.
func withSignalsFor(ctx context.Context, echo time.Duration) (context.Context, context.CancelFunc) {
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
			time.AfterFunc(echo, func() { signal.Stop(c) })
		case <-ctx.Done():
			signal.Stop(c)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// ignoreSecondTerm ignores a second SIGTERM while the process ends in order. A service manager that cannot
// wait sends SIGKILL.
func ignoreSecondTerm() { signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) }

// interruptibleReader is standard input whose Read also returns when the user interrupts.
type interruptibleReader struct {
	ctx context.Context
	in  io.Reader
}

// Read reads in a goroutine, which an interruption leaks until the process ends.
func (t interruptibleReader) Read(p []byte) (int, error) {
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
