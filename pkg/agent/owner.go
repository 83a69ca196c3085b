package agent

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/budget"
	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

var opAdjust = operation[zfs.Adjustment, none]{
	name: "adjust",
	do:   does(site.Owner.Adjust),
	rule: policy.Changes(policy.Adjust, policy.Adjusted),
}

// Adjust asks the agent.
func (r *Remote) Adjust(ctx context.Context, a zfs.Adjustment) error {
	return tell(ctx, r, opAdjust, a)
}

var opMount = operation[string, none]{
	name: "mount",
	do:   does(site.Owner.Mount),
	rule: policy.Changes(policy.Mount, policy.Name),
}

// Mount asks the agent.
func (r *Remote) Mount(ctx context.Context, dataset string) error {
	return tell(ctx, r, opMount, dataset)
}

// A restricted agent has no rule for it: what is in use stays so.
var opUnmount = operation[string, none]{name: "unmount", do: does(site.Owner.Unmount)}

// Unmount asks the agent.
func (r *Remote) Unmount(ctx context.Context, dataset string) error {
	return tell(ctx, r, opUnmount, dataset)
}

var opRollback = operation[zfs.Rollback, none]{
	name:    "rollback",
	do:      does(site.Owner.Rollback),
	rule:    policy.Never[zfs.Rollback]("the newest data of an original may exist nowhere else: a restricted key does not roll it back"),
	request: manyNames,
}

// Rollback asks the agent.
func (r *Remote) Rollback(ctx context.Context, to zfs.Rollback) error {
	return tell(ctx, r, opRollback, to)
}

var opJoinKey = operation[string, none]{
	name: "join-key",
	do:   does(site.Owner.JoinKey),
	rule: policy.Changes(policy.JoinKey, policy.Name),
}

// JoinKey asks the agent.
func (r *Remote) JoinKey(ctx context.Context, dataset string) error {
	return tell(ctx, r, opJoinKey, dataset)
}

var opTakeKey = operation[zfs.KeyTake, none]{
	name: "take-key",
	do:   does(site.Owner.TakeKey),
	rule: policy.Never[zfs.KeyTake]("of a key that is no passphrase a restricted key is not believed"),
}

// TakeKey asks the agent.
func (r *Remote) TakeKey(ctx context.Context, t zfs.KeyTake) error {
	return tell(ctx, r, opTakeKey, t)
}

var opPartKey = operation[string, none]{
	name: "part-key",
	do:   does(site.Owner.PartKey),
	rule: policy.Changes(policy.PartKey, policy.Name),
}

// PartKey asks the agent.
func (r *Remote) PartKey(ctx context.Context, dataset string) error {
	return tell(ctx, r, opPartKey, dataset)
}

// A restricted agent tells nothing of its host's directories and devices.
var opOccupied = operation[[]string, map[string]string]{
	name:    "occupied",
	do:      asks(site.Owner.Occupied),
	rule:    policy.Reads(policy.HostFacts[[]string]),
	request: manyNames,
	answer:  func(paths []string, question int) int { return 4*question + len(paths)*budget.One },
	check: func(paths []string, found *map[string]string) error {
		for path := range *found {
			if !slices.Contains(paths, path) {
				return fmt.Errorf("%q was told of, and not asked for", path)
			}
		}
		return nil
	},
}

// Occupied asks the agent.
func (r *Remote) Occupied(ctx context.Context, paths []string) (map[string]string, error) {
	return ask(ctx, r, opOccupied, paths, nil)
}
