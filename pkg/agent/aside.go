package agent

import (
	"context"

	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

var opCloneAside = operation[zfs.Aside, string]{
	name:  "clone-aside",
	do:    asks(site.Rehearser.CloneAside),
	rule:  policy.Changes(policy.CloneAside, policy.Cloned),
	check: site.CheckAside,
}

// CloneAside asks the agent.
func (r *Remote) CloneAside(ctx context.Context, a zfs.Aside) (string, error) {
	return ask(ctx, r, opCloneAside, a, nil)
}

var opRemoveAside = operation[zfs.Asides, none]{
	name:    "remove-aside",
	do:      does(site.Rehearser.RemoveAside),
	rule:    policy.Changes(policy.RemoveAside, policy.Clones),
	request: manyNames,
}

// RemoveAside asks the agent.
func (r *Remote) RemoveAside(ctx context.Context, a zfs.Asides) error {
	return tell(ctx, r, opRemoveAside, a)
}

var opRunAside = operation[zfs.AsideCommand, zfs.AsideResult]{
	name:   "run-aside",
	do:     asks(site.Rehearser.RunAside),
	rule:   policy.Never[zfs.AsideCommand]("a restricted key runs no command"),
	answer: func(zfs.AsideCommand, int) int { return 4 * zfs.MaxAsideOutput },
	check:  site.CheckAsideResult,
	long:   true,
}

// RunAside asks the agent.
func (r *Remote) RunAside(ctx context.Context, a zfs.AsideCommand) (zfs.AsideResult, error) {
	return ask(ctx, r, opRunAside, a, nil)
}
