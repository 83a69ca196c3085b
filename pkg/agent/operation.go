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

// operation is all that is said of one thing that can be asked of a host, with
// arguments A and the answer R. The server, the client and what a restricted
// agent takes are made of it.
type operation[A, R any] struct {
	name string // on the wire
	do   func(ctx context.Context, s hosts.Host, args A, progress func(transfer.Progress)) (R, error)
	// rule is what a restricted agent judges, and tells its audit.
	rule authz.Rule[A]
	// request is the most that the arguments may cost, in bytes of memory; 0 = budget.Small.
	request int
	// answer is what an answer to a question of so many bytes may cost besides
	// what it repeats of it; nil = no more than budget.Small.
	answer func(args A, question int) int
	// check refuses an answer to something else than was asked; nil for one in
	// which nothing can be wrong.
	check func(args A, answer *R) error
	// long operations last as long as a stream.
	long bool
	// secret arguments are shown nowhere.
	secret bool
}

// none is no argument, or no answer.
type none struct{}

// ErrUnknownOperation is a call of what the agent does not have.
var ErrUnknownOperation = errors.New("unknown operation")

// asks makes an operation of a method of a Site's role that answers.
func asks[S, A, R any](f func(S, context.Context, A) (R, error)) func(context.Context, hosts.Host, A, func(transfer.Progress)) (R, error) {
	return lasts(func(s S, ctx context.Context, args A, _ func(transfer.Progress)) (R, error) { return f(s, ctx, args) })
}

// does makes an operation of one that only succeeds or fails.
func does[S, A any](f func(S, context.Context, A) error) func(context.Context, hosts.Host, A, func(transfer.Progress)) (none, error) {
	return asks(func(s S, ctx context.Context, args A) (none, error) { return none{}, f(s, ctx, args) })
}

// lasts makes an operation of one that tells of its progress.
func lasts[S, A, R any](f func(S, context.Context, A, func(transfer.Progress)) (R, error)) func(context.Context, hosts.Host, A, func(transfer.Progress)) (R, error) {
	return func(ctx context.Context, s hosts.Host, args A, progress func(transfer.Progress)) (none R, err error) {
		role, err := hosts.RoleOf[S](s)
		if err != nil {
			return none, err
		}
		return f(role, ctx, args, progress)
	}
}

// servable is an operation of whatever arguments and answer.
type servable interface{ served() served }

// operations are those of an agent by name.
func operations() map[string]served {
	byName := map[string]served{}
	for _, o := range all() {
		byName[o.served().name] = o.served()
	}
	return byName
}

// served is an operation as the server knows it.
type served struct {
	name    string
	request int
	long    bool
	// carryOut reads arguments, has them judged, where there is a guard, and
	// does what they say.
	carryOut func(context.Context, hosts.Host, *authz.Guard, json.RawMessage, func(transfer.Progress)) (any, error)
}

func (o operation[A, R]) served() served {
	return served{o.name, max(o.request, budget.Small), o.long, func(ctx context.Context, s hosts.Host, g *authz.Guard, body json.RawMessage, progress func(transfer.Progress)) (any, error) {
		args, err := o.arguments(ctx, g, body)
		if err != nil {
			return nil, err
		}
		answer, err := o.do(ctx, s, args, progress)
		if err != nil && g != nil {
			authz.Failed(g, o.asked(body), o.rule, args, err)
		}
		return answer, err
	}}
}

// asked returns a request for the policy.
func (o operation[A, R]) asked(body json.RawMessage) authz.Request {
	return authz.Request{Op: o.name, Body: body, Secret: o.secret}
}

func (o operation[A, R]) arguments(ctx context.Context, g *authz.Guard, body json.RawMessage) (args A, err error) {
	if g != nil {
		return authz.Admit(ctx, g, o.asked(body), o.rule)
	}
	if err := hosts.Decode(body, &args); err != nil {
		return args, fmt.Errorf("malformed arguments: %w", err)
	}
	return args, nil
}

// ask asks the agent of a Remote. report may be nil.
func ask[A, R any](ctx context.Context, r *Remote, o operation[A, R], args A, report func(transfer.Progress)) (answer R, err error) {
	body, err := json.Marshal(args)
	if err != nil {
		return answer, err
	}
	cost := budget.Small + 4*len(body) // an error repeats of a question what it is about
	if o.answer != nil {
		cost += o.answer(args, len(body))
	}
	err = r.call(ctx, o.name, body, cost, &answer, report)
	if err == nil && o.check != nil {
		err = r.checked(o.name, o.check(args, &answer))
	}
	return answer, err
}

// tell asks for what has no answer.
func tell[A any](ctx context.Context, r *Remote, o operation[A, none], args A) error {
	_, err := ask(ctx, r, o, args, nil)
	return err
}
