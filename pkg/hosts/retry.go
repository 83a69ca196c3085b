package hosts

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"zxfer/pkg/fault"
)

// retryTimeout limits how long Retry tries to connect again to a host that was reached before. A
// reset connection may be refused for a moment.
const retryTimeout = 10 * time.Second

// Retry is like Do, but calls f again on a new connection if the connection is lost. f must be
// idempotent. If the connection cannot be restored or is lost again, the error has class
// fault.Interrupted.
func (h *Conn) Retry(ctx context.Context, f func(Host) error) error {
	var lost time.Time // time of the first loss
	for calls, failures := 0, 0; ; {
		called := false
		err := h.Do(ctx, func(st Host) error { called = true; return f(st) })
		switch {
		case !errors.Is(err, ErrLost), ctx.Err() != nil:
			return err
		case called:
			calls++
		case fault.ClassOf(err) == fault.Refused: // permanent
			return err
		default:
			failures++
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		var pause time.Duration
		if failures > 0 {
			pause = Backoff(failures)
		}
		if calls == 2 || time.Since(lost)+pause > retryTimeout {
			return fault.Interrupt("", err)
		}
		if !Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// Backoff returns the pause before an attempt. It doubles from half a second to half a minute, with
// jitter to spread connections that were interrupted together.
func Backoff(try int) time.Duration {
	const first, longest = 500 * time.Millisecond, 30 * time.Second
	d := min(longest, first<<min(try-1, 16))
	return d/2 + rand.N(d/2+1)
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
