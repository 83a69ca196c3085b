package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

var opDamage = operation[string, zfs.Damage]{
	name:   "damage",
	do:     asks(hosts.Healer.Damage),
	rule:   authz.Reads(authz.Damage),
	answer: func(string, int) int { return 2 * maxAnswer },
	check:  hosts.CheckDamage,
}

// Damage asks the agent.
func (r *Remote) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	return ask(ctx, r, opDamage, dataset, nil)
}

var opScrub = operation[string, none]{
	name: "scrub",
	do:   does(hosts.Healer.Scrub),
	rule: authz.Changes(authz.Scrub, authz.Name),
}

// Scrub asks the agent.
func (r *Remote) Scrub(ctx context.Context, dataset string) error {
	return tell(ctx, r, opScrub, dataset)
}

var opSync = operation[string, none]{
	name: "sync",
	do:   does(hosts.Healer.Sync),
	rule: authz.Reads(authz.Sync),
}

// Sync asks the agent.
func (r *Remote) Sync(ctx context.Context, dataset string) error {
	return tell(ctx, r, opSync, dataset)
}

var opRevert = operation[string, none]{
	name: "revert",
	do:   does(hosts.Healer.Revert),
	rule: authz.Changes(authz.Revert, authz.Name),
}

// Revert asks the agent.
func (r *Remote) Revert(ctx context.Context, snapshot string) error {
	return tell(ctx, r, opRevert, snapshot)
}
