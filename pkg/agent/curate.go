package agent

import (
	"context"

	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

var opSetAside = operation[[]zfs.SetAside, none]{
	name: "set-aside",
	do:   does(site.Curator.SetAside),
	rule: policy.Changes(policy.SetAside, policy.SetsAside),
}

// SetAside asks the agent.
func (r *Remote) SetAside(ctx context.Context, all []zfs.SetAside) error {
	return tell(ctx, r, opSetAside, all)
}

var opRemoveGone = operation[[]zfs.Gone, none]{
	name:    "remove-gone",
	do:      does(site.Curator.RemoveGone),
	rule:    policy.Changes(policy.RemoveGone, policy.RemovesGone),
	request: manyNames,
}

// RemoveGone asks the agent.
func (r *Remote) RemoveGone(ctx context.Context, all []zfs.Gone) error {
	return tell(ctx, r, opRemoveGone, all)
}
