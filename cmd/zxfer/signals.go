package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// errSignal is the cause of a context that a signal cancelled.
var errSignal = errors.New("interrupted by a signal")

// interruptible returns a context that the first SIGINT, SIGTERM or SIGHUP
// cancels, so that a job winds down and keeps what it has. The second one
// finds the signals' default action restored and ends the process at once.
// SIGHUP stays ignored where it was (nohup).
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
			signal.Stop(c)
			cancel(errSignal)
		case <-ctx.Done():
			signal.Stop(c)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// onStatus calls report for every SIGUSR1 until stop is called.
func onStatus(report func()) (stop func()) {
	c := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(c, syscall.SIGUSR1)
	go func() {
		for {
			select {
			case <-c:
				report()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(c)
		close(done)
	}
}
