package hosts

import (
	"context"
	"errors"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/retry"
)

// retryTimeout limits how long Retry tries to connect again to a host that was reached before. A
// reset connection may be refused for a moment.
const retryTimeout = 10 * time.Second

// Retry is like Do, but calls f again on a new connection if the connection is lost. f must be
// idempotent. If the connection cannot be restored or is lost again, the error has class
// fault.Interrupted.
func (h *Conn) Retry(ctx context.Context, f func(Host) error) error {
	var lost time.Time // time of the first loss
	called := false    // by the last try
	calls, failures := 0, 0
	again := retry.Loop{
		Try: func(ctx context.Context, _ int) error {
			called = false
			return h.Do(ctx, func(on Host) error { called = true; calls++; return f(on) })
		},
		Retryable: func(err, _ error) bool {
			permanent := !called && fault.ClassOf(err) == fault.Refused
			return errors.Is(err, ErrLost) && !permanent
		},
		Pause: func(error, int) (pause time.Duration, more bool) {
			if lost.IsZero() {
				lost = time.Now()
			}
			if !called {
				failures++
			}
			if failures > 0 {
				pause = retry.Backoff(failures)
			}
			return pause, calls < 2 && time.Since(lost)+pause <= retryTimeout
		},
		Fail: func(err error, end retry.End) error {
			if end == retry.Exhausted {
				return fault.Interrupt("", err)
			}
			return err
		},
	}
	return again.Run(ctx)
}
