package authz

import (
	"context"
	"errors"

	"zxfer/pkg/hosts"
)

// listRule is the rule of hosts.OpApply. Each change of the list, and its query, has the rule of its own
// operation. The list is refused if one of them is.
type listRule struct{}

// errNotStarted is the outcome of an admitted change after one that failed.
var errNotStarted = errors.New("an earlier change failed")

func (r listRule) admit(ctx context.Context, g *Guard, q Request) (any, error) {
	return decodeAndJudge[hosts.ChangeList](ctx, g, r, q)
}

func (listRule) judge(ctx context.Context, g *Guard, _ Request, decoded any) (any, error) {
	l := decoded.(hosts.ChangeList)
	judge := func(op string, args any) (any, error) { return g.rules[op].judge(ctx, g, Request{Op: op}, args) }
	for i, c := range l.Changes {
		args, err := judge(c.Op.Name(), c.Args)
		if err != nil {
			return nil, err
		}
		l.Changes[i].Args = args
	}
	if l.List != nil {
		args, err := judge(hosts.OpList.Name(), *l.List)
		if err != nil {
			return nil, err
		}
		query := args.(hosts.ListQuery)
		l.List = &query
	}
	return l, nil
}

func (listRule) logAdmitted(g *Guard, _ string, args any) {
	for _, c := range args.(hosts.ChangeList).Changes {
		g.rules[c.Op.Name()].logAdmitted(g, c.Op.Name(), c.Args)
	}
}

// logFailed logs the change that failed and those that did not start.
func (listRule) logFailed(g *Guard, _ Request, args any, err error) {
	l := args.(hosts.ChangeList)
	for _, c := range l.Changes[min(hosts.Done(err), len(l.Changes)):] {
		g.rules[c.Op.Name()].logFailed(g, Request{Op: c.Op.Name()}, c.Args, err)
		err = errNotStarted
	}
}

func (listRule) needed() (verbs []string, destroys bool) { return nil, false }
