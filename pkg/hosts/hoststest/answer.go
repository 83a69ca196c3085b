// Package hoststest replaces operations of hosts in tests. Its own tests are the conformance suite of
// hosts.Host, which runs on every implementation, local and remote. Jobs rely on these properties.
//
// Without ZFS, only hosts in memory are tested.
package hoststest

import (
	"context"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
)

// Answer replaces one operation of a host.
type Answer struct {
	op  string
	run func(ctx context.Context, r *hosts.Request) error
}

// With returns the Answer that f gives to an operation.
func With[A, R any](op hosts.Op[A, R], f func(context.Context, A) (R, error)) Answer {
	return Watched(op, func(ctx context.Context, args A, _ func(transfer.Progress)) (R, error) { return f(ctx, args) })
}

// Watched is like With, for a function that reports progress.
func Watched[A, R any](op hosts.Op[A, R], f func(context.Context, A, func(transfer.Progress)) (R, error)) Answer {
	return Answer{op.Name(), func(ctx context.Context, r *hosts.Request) error {
		answer, err := f(ctx, r.Args.(A), r.Progress)
		*r.Answer.(*R) = answer
		return err
	}}
}

// Run runs a request with the first Answer to its operation, or on rest if there is none.
func Run(ctx context.Context, rest hosts.Runner, r *hosts.Request, answers ...Answer) error {
	for _, a := range answers {
		if a.op == r.Op.Name() {
			return a.run(ctx, r)
		}
	}
	return rest.Run(ctx, r)
}
