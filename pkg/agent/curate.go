package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

var opRenameDiverged = operation[[]zfs.DivergedCopy, none]{
	name: "set-aside",
	do:   does(hosts.Retention.RenameDiverged),
	rule: authz.Changes(authz.RenameDiverged, authz.DivergedNames),
}

// RenameDiverged asks the agent.
func (r *Remote) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	return tell(ctx, r, opRenameDiverged, all)
}

var opDestroyOrphans = operation[[]zfs.Orphan, none]{
	name:    "remove-gone",
	do:      does(hosts.Retention.DestroyOrphans),
	rule:    authz.Changes(authz.DestroyOrphans, authz.OrphanNames),
	request: manyNames,
}

// DestroyOrphans asks the agent.
func (r *Remote) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	return tell(ctx, r, opDestroyOrphans, all)
}
