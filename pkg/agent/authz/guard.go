package authz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Guard checks the requests of one session. It may be used by several goroutines.
type Guard struct {
	policy *Policy
	rules  map[string]anyRule // by operation
	host   Host
	audit  func(string)
	lines  sync.Mutex // keeps the lines of a request together
}

// Host has the operations that rules run on the host. None of them changes it.
type Host interface {
	List(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error)
	DatasetOf(ctx context.Context, path string) (string, error)
	Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error)
	InUse(ctx context.Context, paths []string) (map[string]string, error)
	Mountpoints(ctx context.Context) ([]zfs.Mountpoint, error)
}

// NewGuard returns a Guard for the host h. audit gets printable lines: every refusal (except
// errHostFacts, which every job causes), everything that an admitted request changes, and every
// admitted request that failed. It is called from several goroutines, but the lines of two
// requests are not mixed.
func NewGuard(p *Policy, h Host, audit func(string)) *Guard {
	return &Guard{policy: p, rules: rules(), host: h, audit: audit}
}

// rule checks one operation with arguments A. The zero rule refuses it.
type rule[A any] struct {
	permits func(ctx context.Context, g *Guard, args *A) error
	// account returns the audit text of admitted arguments; nil if they change nothing.
	account func(args *A) account
	// verbs are the grants that the operation needs: the first on the host of a source, the last on that
	// of a copy. destroys is set if --append-only forbids it.
	verbs    []string
	destroys bool
	// refusal explains to the client why no policy permits the operation. "" and no permits means
	// that the operation has no rule.
	refusal string
}

// reads returns the rule of an operation that changes nothing.
func reads[A any](permits func(context.Context, *Guard, *A) error) rule[A] {
	return rule[A]{permits: permits}
}

// changes returns the rule of an operation that changes what its account describes.
func changes[A any](permits func(context.Context, *Guard, *A) error, account func(*A) account) rule[A] {
	return rule[A]{permits: permits, account: account}
}

// needs adds the grants that the operation needs.
func (r rule[A]) needs(verbs ...string) rule[A] {
	r.verbs = verbs
	return r
}

// destroying marks an operation that --append-only forbids.
func (r rule[A]) destroying() rule[A] {
	r.destroys = true
	return r
}

func (r rule[A]) needed() (verbs []string, destroys bool) { return r.verbs, r.destroys }

// never returns a rule that always refuses, with the reason.
func never[A any](why string) rule[A] { return rule[A]{refusal: why} }

// Request is a request to an agent.
type Request struct {
	Op     string
	Body   json.RawMessage // encoded arguments
	Secret bool            // keep the arguments out of logs
}

// anyRule is a rule with any type of arguments.
type anyRule interface {
	admit(ctx context.Context, g *Guard, q Request) (args any, err error)
	// judge checks decoded arguments. It returns the checked ones, or logs and returns a refusal.
	judge(ctx context.Context, g *Guard, q Request, args any) (any, error)
	logAdmitted(g *Guard, op string, args any)
	logFailed(g *Guard, q Request, args any, err error)
	needed() (verbs []string, destroys bool)
}

// Admit decodes and checks the arguments of a request. It returns the checked arguments, which
// the operation must use, or a refusal (fault.Refused) with the reason.
func (g *Guard) Admit(ctx context.Context, q Request) (args any, err error) {
	if rule := g.rules[q.Op]; rule != nil {
		return rule.admit(ctx, g, q)
	}
	return nil, g.refuseUnknown(q)
}

// LogFailed logs that an admitted request failed.
func (g *Guard) LogFailed(q Request, args any, err error) { g.rules[q.Op].logFailed(g, q, args, err) }

func (r rule[A]) admit(ctx context.Context, g *Guard, q Request) (any, error) {
	switch {
	case r.refusal != "":
		return nil, g.refuse(q, errors.New(r.refusal))
	case r.permits == nil:
		return nil, g.refuseUnknown(q)
	}
	return decodeAndJudge[A](ctx, g, r, q)
}

// decodeAndJudge decodes arguments and judges them by a rule.
func decodeAndJudge[A any](ctx context.Context, g *Guard, r anyRule, q Request) (any, error) {
	var args A
	if err := hosts.Decode(q.Body, &args); err != nil {
		return nil, g.refuse(q, fmt.Errorf("%w: %w", hosts.ErrMalformed, err))
	}
	checked, err := r.judge(ctx, g, q, args)
	if err == nil {
		r.logAdmitted(g, q.Op, checked)
	}
	return checked, err
}

func (r rule[A]) judge(ctx context.Context, g *Guard, q Request, decoded any) (any, error) {
	args, err := decoded.(A), error(nil)
	if field := uncheckedField(reflect.ValueOf(args)); field != "" {
		err = fmt.Errorf("no rule covers the field %s", field)
	} else {
		err = addGrants(r.permits(ctx, g, &args), r.verbs)
	}
	switch {
	case err == nil:
		return args, nil
	case errors.Is(err, errHostFacts):
		return nil, g.refusal(err)
	case r.account != nil:
		return nil, g.refuseWith(q, err, clip(strings.Join(r.account(&args).items, " "), maxRefused))
	}
	if q.Body == nil { // a part of a list
		q.Body, _ = json.Marshal(args) // an excerpt for the audit
	}
	return nil, g.refuse(q, err)
}

// refuseUnknown refuses an operation that has no rule.
func (g *Guard) refuseUnknown(q Request) error {
	return g.refuse(q, fmt.Errorf("no rule allows the operation %q", q.Op[:min(len(q.Op), 64)]))
}

// refuse logs a refusal on one line, with an excerpt of the request.
func (g *Guard) refuse(q Request, err error) error {
	if q.Secret {
		return g.refuseWith(q, err, "(not shown)")
	}
	return g.refuseWith(q, err, clean(string(q.Body)))
}

func (g *Guard) refuseWith(q Request, err error, shown string) error {
	g.logRefused(q.Op, clean(err.Error())+": "+shown)
	return g.refusal(err)
}

func (g *Guard) refusal(err error) error {
	return fault.Refusef("ask the administrator of that host for more grants in authorized_keys; the key has: "+g.policy.String(),
		"%w: %w", hosts.ErrForbidden, err)
}
