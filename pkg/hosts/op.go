package hosts

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/budget"
	"zxfer/pkg/fault"
	"zxfer/pkg/transfer"
)

// Op is an operation on a host with arguments A and an answer of type R. The local host, the agent's
// server and client, and hosts without zxfer all run it from this value. Package authz has its rule
// for restricted keys.
type Op[A, R any] struct {
	name string // in the protocol
	// Exactly one of them runs the operation: plain and plainWatch on every host, full only on hosts
	// on which zxfer runs.
	plain      func(on Plain, ctx context.Context, args A) (R, error)
	plainWatch func(on Plain, ctx context.Context, args A, progress func(transfer.Progress)) (R, error)
	full       fullFunc[A, R]
	// ability completes "without zxfer there it cannot" in messages. Only full operations have one.
	ability string
	// request is the maximum cost of the arguments, in bytes of memory; 0 = budget.MinLimit.
	request int
	// answer returns the maximum cost of an answer to a request of that many bytes, beyond the part
	// that repeats the request; nil = budget.MinLimit.
	answer func(args A, request int) int
	// check refuses an answer that does not match the arguments; nil if any answer is valid.
	check func(args A, answer *R) error
	// long operations may take as long as a stream.
	long bool
	// secret arguments are never logged.
	secret bool
	// acts are the operations of ZFS that it runs and that need permissions, as in zfs.Act.Op. onCopy
	// replaces them on the host of a copy, unless it is nil.
	acts, onCopy []string
}

// fullFunc runs an operation on a host on which zxfer runs. progress may be nil.
type fullFunc[A, R any] func(on *Local, ctx context.Context, args A, progress func(transfer.Progress)) (R, error)

// None stands for no arguments or no answer.
type None struct{}

// Operation is an Op with any types of arguments and answer. Only Op implements it.
type Operation interface {
	// Name returns the name in the protocol.
	Name() string
	// Long reports whether the operation may take as long as a stream.
	Long() bool
	// Secret reports whether the arguments must not be logged.
	Secret() bool
	// Plain reports whether a host without zxfer can run the operation.
	Plain() bool
	// MaxRequest returns the maximum cost of the arguments, in bytes of memory.
	MaxRequest() int
	// MaxAnswer returns the maximum cost of an answer to encoded arguments of that many bytes.
	MaxAnswer(args any, request int) int
	// Acts returns the operations of ZFS that it runs, as in zfs.Act.Op. copied is set on the host of a copy.
	Acts(copied bool) []string
	// Decode decodes the arguments of a request from another host.
	Decode(body []byte) (args any, err error)
	// Request returns a request with arguments of the operation's type.
	Request(args any, progress func(transfer.Progress)) *Request

	run(ctx context.Context, on Plain, r *Request) error
	checkAnswer(r *Request) error
	lacking() string
}

// Request is one run of an operation.
type Request struct {
	Op       Operation
	Args     any                     // of the operation's type
	Answer   any                     // pointer to the answer, which Run sets
	Progress func(transfer.Progress) // may be nil
}

// On runs the request on a host of this process. A host that is not a Local only runs plain
// operations.
func (r *Request) On(ctx context.Context, host Plain) error { return r.Op.run(ctx, host, r) }

// CheckAnswer refuses an answer from another host that does not match the arguments. It may replace
// unprintable text.
func (r *Request) CheckAnswer() error { return r.Op.checkAnswer(r) }

// Runner runs operations: a Host, a Conn or a By.
type Runner interface {
	Run(ctx context.Context, r *Request) error
}

// By is a Runner that gets its host from a function, such as Conn.Retry.
type By func(ctx context.Context, f func(Host) error) error

func (by By) Run(ctx context.Context, r *Request) error {
	return by(ctx, func(h Host) error { return h.Run(ctx, r) })
}

// Call runs an operation and returns its answer.
func Call[A, R any](ctx context.Context, on Runner, op Op[A, R], args A) (R, error) {
	return Watch(ctx, on, op, args, nil)
}

// Watch is like Call and reports the progress about twice a second.
func Watch[A, R any](ctx context.Context, on Runner, op Op[A, R], args A,
	progress func(transfer.Progress)) (answer R, err error) {
	err = on.Run(ctx, &Request{Op: op, Args: args, Answer: &answer, Progress: progress})
	return answer, err
}

// Run runs an operation that has no answer.
func Run[A any](ctx context.Context, on Runner, op Op[A, None], args A) error {
	_, err := Call(ctx, on, op, args)
	return err
}

// Lacking returns what zxfer cannot do on a host without zxfer, as verb phrases. Errors, doctor and the
// documentation use them.
func Lacking() []string {
	var out []string
	for _, op := range Operations() {
		if text := op.lacking(); text != "" && text != toMove && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// Unsupported returns the refusal of an operation that the host cannot run without zxfer.
func Unsupported(host string, op Operation) error {
	return fault.Refusef("to see why zxfer does not run there: zxfer doctor "+host,
		"%s: without zxfer there, zxfer cannot %s", host, op.lacking())
}

func (o Op[A, R]) Name() string    { return o.name }
func (o Op[A, R]) Long() bool      { return o.long }
func (o Op[A, R]) Secret() bool    { return o.secret }
func (o Op[A, R]) Plain() bool     { return o.full == nil }
func (o Op[A, R]) MaxRequest() int { return max(o.request, budget.MinLimit) }
func (o Op[A, R]) lacking() string { return o.ability }

func (o Op[A, R]) Acts(copied bool) []string {
	if copied && o.onCopy != nil {
		return o.onCopy
	}
	return o.acts
}

func (o Op[A, R]) MaxAnswer(args any, request int) int {
	cost := budget.MinLimit + 4*request // an error repeats parts of the request
	if o.answer != nil {
		cost += o.answer(args.(A), request)
	}
	return cost
}

func (o Op[A, R]) Decode(body []byte) (any, error) {
	var args A
	if err := Decode(body, &args); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return args, nil
}

func (o Op[A, R]) Request(args any, progress func(transfer.Progress)) *Request {
	return &Request{Op: o, Args: args, Answer: new(R), Progress: progress}
}

func (o Op[A, R]) run(ctx context.Context, on Plain, r *Request) (err error) {
	args, answer := r.Args.(A), r.Answer.(*R)
	switch {
	case o.plain != nil:
		*answer, err = o.plain(on, ctx, args)
	case o.plainWatch != nil:
		*answer, err = o.plainWatch(on, ctx, args, r.Progress)
	default:
		*answer, err = o.full(on.(*Local), ctx, args, r.Progress)
	}
	return err
}

func (o Op[A, R]) checkAnswer(r *Request) error {
	if o.check == nil {
		return nil
	}
	return o.check(r.Args.(A), r.Answer.(*R))
}

// withoutAnswer adapts a method that returns only an error.
func withoutAnswer[H, A any](f func(H, context.Context, A) error) func(H, context.Context, A) (None, error) {
	return func(on H, ctx context.Context, args A) (None, error) { return None{}, f(on, ctx, args) }
}

// withoutProgress adapts a method that reports no progress.
func withoutProgress[A, R any](f func(*Local, context.Context, A) (R, error)) fullFunc[A, R] {
	return func(on *Local, ctx context.Context, args A, _ func(transfer.Progress)) (R, error) {
		return f(on, ctx, args)
	}
}

// changes adapts a method that only changes the host.
func changes[A any](f func(*Local, context.Context, A) error) fullFunc[A, None] {
	return withoutProgress(withoutAnswer(f))
}
