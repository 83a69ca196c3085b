package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
)

// operation defines one operation with arguments A and answer R. The server, the client and the
// restricted agent all use it.
type operation[A, R any] struct {
	name string // in the protocol
	do   func(ctx context.Context, s hosts.Host, args A, progress func(transfer.Progress)) (R, error)
	// rule is the restricted agent's check, with the audit text.
	rule authz.Rule[A]
	// request is the maximum cost of the arguments, in bytes of memory; 0 = budget.Small.
	request int
	// answer returns the maximum cost of an answer to a request of that many bytes, beyond the
	// part that repeats the request; nil = budget.Small.
	answer func(args A, question int) int
	// check refuses an answer that does not match the arguments; nil if any answer is valid.
	check func(args A, answer *R) error
	// long operations may take as long as a stream.
	long bool
	// secret arguments are never logged.
	secret bool
}

// none stands for no arguments or no answer.
type none struct{}

// withAnswer makes an operation of a method of a host role.
func withAnswer[S, A, R any](f func(S, context.Context, A) (R, error)) func(context.Context, hosts.Host, A, func(transfer.Progress)) (R, error) {
	return withProgress(func(s S, ctx context.Context, args A, _ func(transfer.Progress)) (R, error) { return f(s, ctx, args) })
}

// withoutAnswer does the same for a method that returns only an error.
func withoutAnswer[S, A any](f func(S, context.Context, A) error) func(context.Context, hosts.Host, A, func(transfer.Progress)) (none, error) {
	return withAnswer(func(s S, ctx context.Context, args A) (none, error) { return none{}, f(s, ctx, args) })
}

// withProgress does the same for a method that reports progress.
func withProgress[S, A, R any](f func(S, context.Context, A, func(transfer.Progress)) (R, error)) func(context.Context, hosts.Host, A, func(transfer.Progress)) (R, error) {
	return func(ctx context.Context, s hosts.Host, args A, progress func(transfer.Progress)) (none R, err error) {
		role, err := hosts.RoleOf[S](s)
		if err != nil {
			return none, err
		}
		return f(role, ctx, args, progress)
	}
}

// query calls an operation of the agent. report may be nil.
func query[A, R any](ctx context.Context, r *Remote, o operation[A, R], args A, report func(transfer.Progress)) (answer R, err error) {
	body, err := json.Marshal(args)
	if err != nil {
		return answer, err
	}
	cost := budget.Small + 4*len(body) // an error repeats parts of the request
	if o.answer != nil {
		cost += o.answer(args, len(body))
	}
	err = r.call(ctx, o.name, body, cost, &answer, report)
	if err == nil && o.check != nil {
		err = r.checkAnswer(o.name, o.check(args, &answer))
	}
	return answer, err
}

// command calls an operation without an answer.
func command[A any](ctx context.Context, r *Remote, o operation[A, none], args A) error {
	_, err := query(ctx, r, o, args, nil)
	return err
}

// serverOperation is an operation as the server sees it.
type serverOperation struct {
	name    string
	request int
	long    bool
	// execute decodes the arguments, lets the guard, if any, check them, and runs the
	// operation.
	execute func(context.Context, hosts.Host, *authz.Guard, json.RawMessage, func(transfer.Progress)) (any, error)
}

// registrable is an operation with any types of arguments and answer.
type registrable interface{ served() serverOperation }

// operations returns the operations of an agent by name.
func operations() map[string]serverOperation {
	byName := map[string]serverOperation{}
	for _, o := range allOperations() {
		byName[o.served().name] = o.served()
	}
	return byName
}

func (o operation[A, R]) served() serverOperation {
	return serverOperation{o.name, max(o.request, budget.Small), o.long, func(ctx context.Context, s hosts.Host, g *authz.Guard, body json.RawMessage, progress func(transfer.Progress)) (any, error) {
		args, err := o.arguments(ctx, g, body)
		if err != nil {
			return nil, err
		}
		answer, err := o.do(ctx, s, args, progress)
		if err != nil && g != nil {
			authz.Failed(g, o.authzRequest(body), o.rule, args, err)
		}
		return answer, err
	}}
}

func (o operation[A, R]) arguments(ctx context.Context, g *authz.Guard, body json.RawMessage) (args A, err error) {
	if g != nil {
		return authz.Admit(ctx, g, o.authzRequest(body), o.rule)
	}
	if err := hosts.Decode(body, &args); err != nil {
		return args, fmt.Errorf("malformed arguments: %w", err)
	}
	return args, nil
}

// authzRequest returns the request for the guard.
func (o operation[A, R]) authzRequest(body json.RawMessage) authz.Request {
	return authz.Request{Op: o.name, Body: body, Secret: o.secret}
}

// ErrUnknownOperation is returned for an operation that the agent does not have.
var ErrUnknownOperation = errors.New("unknown operation")
