package hosts

import (
	"context"
	"errors"
	"slices"
)

// ErrNotStarted is the error of a request of InOrder that did not start, because an earlier request
// failed.
var ErrNotStarted = errors.New("it did not start, because an earlier request failed")

// sequencer is a Host that can run requests like InOrder without an exchange of messages between them.
type sequencer interface {
	// RunInOrder runs requests and returns the error of each. It returns ErrNotStarted for requests that
	// did not start. After ErrLost, the outcome of a request is unknown.
	RunInOrder(ctx context.Context, requests []*Request) []error
}

// InOrder runs requests on one host, each only after the previous one succeeded, and returns the error
// of each. An agent gets all requests together, so that they cost one round trip. If on is Conn.Retry,
// the requests must be idempotent: after a lost connection, it repeats the requests without a success.
func InOrder(ctx context.Context, on By, requests ...*Request) []error {
	errs := noneStarted(len(requests))
	done := 0 // that many have succeeded
	err := on(ctx, func(h Host) error {
		copy(errs[done:], runInOrder(ctx, h, requests[done:]))
		for done < len(requests) && errs[done] == nil {
			done++
		}
		if done == len(requests) {
			return nil
		}
		return errs[done]
	})
	if done < len(requests) {
		errs[done] = err
	}
	return errs
}

func runInOrder(ctx context.Context, h Host, requests []*Request) []error {
	if s, ok := h.(sequencer); ok && len(requests) > 1 {
		return s.RunInOrder(ctx, requests)
	}
	errs := noneStarted(len(requests))
	for i, r := range requests {
		if errs[i] = h.Run(ctx, r); errs[i] != nil {
			break
		}
	}
	return errs
}

func noneStarted(n int) []error { return slices.Repeat([]error{ErrNotStarted}, n) }
