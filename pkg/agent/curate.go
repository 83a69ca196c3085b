package agent

import (
	"context"

	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

var opRenameDiverged = operation[[]zfs.DivergedCopy, none]{
	name: "set-aside",
	do:   does(site.Retention.RenameDiverged),
	rule: policy.Changes(policy.RenameDiverged, policy.DivergedNames),
}

// RenameDiverged asks the agent.
func (r *Remote) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	return tell(ctx, r, opRenameDiverged, all)
}

var opDestroyOrphans = operation[[]zfs.Orphan, none]{
	name:    "remove-gone",
	do:      does(site.Retention.DestroyOrphans),
	rule:    policy.Changes(policy.DestroyOrphans, policy.OrphanNames),
	request: manyNames,
}

// DestroyOrphans asks the agent.
func (r *Remote) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	return tell(ctx, r, opDestroyOrphans, all)
}
