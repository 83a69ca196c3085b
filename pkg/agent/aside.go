package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

var opCreateDrillClone = operation[zfs.DrillClone, string]{
	name:  "clone-aside",
	do:    asks(hosts.DrillHost.CreateDrillClone),
	rule:  authz.Changes(authz.CreateDrillClone, authz.Cloned),
	check: hosts.CheckDrillClone,
}

// CreateDrillClone asks the agent.
func (r *Remote) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	return ask(ctx, r, opCreateDrillClone, a, nil)
}

var opDestroyDrillClones = operation[zfs.DrillClones, none]{
	name:    "remove-aside",
	do:      does(hosts.DrillHost.DestroyDrillClones),
	rule:    authz.Changes(authz.DestroyDrillClones, authz.Clones),
	request: manyNames,
}

// DestroyDrillClones asks the agent.
func (r *Remote) DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error {
	return tell(ctx, r, opDestroyDrillClones, a)
}

var opRunInDrillClone = operation[zfs.DrillCommand, zfs.DrillResult]{
	name:   "run-aside",
	do:     asks(hosts.DrillHost.RunInDrillClone),
	rule:   authz.Never[zfs.DrillCommand]("a restricted key runs no command"),
	answer: func(zfs.DrillCommand, int) int { return 4 * zfs.MaxDrillOutput },
	check:  hosts.CheckDrillResult,
	long:   true,
}

// RunInDrillClone asks the agent.
func (r *Remote) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error) {
	return ask(ctx, r, opRunInDrillClone, a, nil)
}
