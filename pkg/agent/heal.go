package agent

import (
	"context"

	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

var opDamage = operation[string, zfs.Damage]{
	name:   "damage",
	do:     asks(site.Healer.Damage),
	rule:   policy.Reads(policy.Damage),
	answer: func(string, int) int { return 2 * maxAnswer },
	check:  site.CheckDamage,
}

// Damage asks the agent.
func (r *Remote) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	return ask(ctx, r, opDamage, dataset, nil)
}

var opScrub = operation[string, none]{
	name: "scrub",
	do:   does(site.Healer.Scrub),
	rule: policy.Changes(policy.Scrub, policy.Name),
}

// Scrub asks the agent.
func (r *Remote) Scrub(ctx context.Context, dataset string) error {
	return tell(ctx, r, opScrub, dataset)
}

var opSync = operation[string, none]{
	name: "sync",
	do:   does(site.Healer.Sync),
	rule: policy.Reads(policy.Sync),
}

// Sync asks the agent.
func (r *Remote) Sync(ctx context.Context, dataset string) error {
	return tell(ctx, r, opSync, dataset)
}

var opRevert = operation[string, none]{
	name: "revert",
	do:   does(site.Healer.Revert),
	rule: policy.Changes(policy.Revert, policy.Name),
}

// Revert asks the agent.
func (r *Remote) Revert(ctx context.Context, snapshot string) error {
	return tell(ctx, r, opRevert, snapshot)
}
