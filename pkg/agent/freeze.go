package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
)

// It runs commands, and clients of databases.
var opSnapshotFrozen = operation[freeze.Request, freeze.Result]{
	name:    "snapshot-frozen",
	do:      asks(hosts.Freezer.SnapshotFrozen),
	request: manyNames,
	answer:  func(q freeze.Request, _ int) int { return (len(q.Wanted) + 1) * 16 << 10 },
	rule:    authz.Never[freeze.Request]("a restricted key freezes nothing, as that runs programs"),
	check:   freeze.CheckResult,
	long:    true,
}

// SnapshotFrozen asks the agent.
func (r *Remote) SnapshotFrozen(ctx context.Context, q freeze.Request) (freeze.Result, error) {
	return ask(ctx, r, opSnapshotFrozen, q, nil)
}
