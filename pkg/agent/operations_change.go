package agent

import (
	"context"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

var opSnapshot = operation[[]string, none]{
	name:    "snapshot",
	do:      withoutAnswer(hosts.Snapshots.Snapshot),
	rule:    authz.Changes(authz.Snapshot, authz.Names),
	request: manyNames,
}

// Snapshot calls the agent.
func (r *Remote) Snapshot(ctx context.Context, snapshots []string) error {
	return command(ctx, r, opSnapshot, snapshots)
}

// It runs commands and database clients.
var opSnapshotFrozen = operation[freeze.Request, freeze.Result]{
	name:    "snapshot-frozen",
	do:      withAnswer(hosts.Freezer.SnapshotFrozen),
	request: manyNames,
	answer:  func(q freeze.Request, _ int) int { return (len(q.Wanted) + 1) * 16 << 10 },
	rule:    authz.Never[freeze.Request]("a restricted key freezes nothing, as that runs programs"),
	check:   freeze.CheckResult,
	long:    true,
}

// SnapshotFrozen calls the agent.
func (r *Remote) SnapshotFrozen(ctx context.Context, q freeze.Request) (freeze.Result, error) {
	return query(ctx, r, opSnapshotFrozen, q, nil)
}

var opHold = operation[authz.Tagged, none]{
	name: "hold",
	do: withoutAnswer(func(s hosts.Snapshots, ctx context.Context, h authz.Tagged) error {
		return s.Hold(ctx, h.Tag, h.Snapshots)
	}),
	rule:    authz.Changes(authz.Hold, authz.HoldNames),
	request: manyNames,
}

// Hold calls the agent.
func (r *Remote) Hold(ctx context.Context, tag string, snapshots []string) error {
	return command(ctx, r, opHold, authz.Tagged{Tag: tag, Snapshots: snapshots})
}

var opRelease = operation[authz.Tagged, none]{
	name: "release",
	do: withoutAnswer(func(s hosts.Snapshots, ctx context.Context, h authz.Tagged) error {
		return s.Release(ctx, h.Tag, h.Snapshots)
	}),
	rule:    authz.Changes(authz.Release, authz.HoldNames),
	request: manyNames,
}

// Release calls the agent.
func (r *Remote) Release(ctx context.Context, tag string, snapshots []string) error {
	return command(ctx, r, opRelease, authz.Tagged{Tag: tag, Snapshots: snapshots})
}

var opBookmark = operation[map[string]string, none]{
	name:    "bookmark",
	do:      withoutAnswer(hosts.Snapshots.Bookmark),
	rule:    authz.Changes(authz.Bookmark, authz.BookmarkNames),
	request: manyNames,
}

// Bookmark calls the agent.
func (r *Remote) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return command(ctx, r, opBookmark, bookmarks)
}

var opDestroy = operation[[]string, none]{
	name:    "destroy",
	do:      withoutAnswer(hosts.Snapshots.Destroy),
	rule:    authz.Changes(authz.Destroy, authz.Names),
	request: manyNames,
}

// Destroy calls the agent.
func (r *Remote) Destroy(ctx context.Context, versions []string) error {
	return command(ctx, r, opDestroy, versions)
}

var opCreateParents = operation[string, none]{
	name: "create-parents",
	do:   withoutAnswer(hosts.Snapshots.CreateParents),
	rule: authz.Changes(authz.CreateParents, authz.Name),
}

// CreateParents calls the agent.
func (r *Remote) CreateParents(ctx context.Context, dataset string) error {
	return command(ctx, r, opCreateParents, dataset)
}

var opDiscard = operation[string, none]{
	name: "discard-partial",
	do:   withoutAnswer(hosts.Snapshots.DiscardPartial),
	rule: authz.Changes(authz.DiscardPartial, authz.Name),
}

// DiscardPartial calls the agent.
func (r *Remote) DiscardPartial(ctx context.Context, dataset string) error {
	return command(ctx, r, opDiscard, dataset)
}

var opRenameDiverged = operation[[]zfs.DivergedCopy, none]{
	name: "set-aside",
	do:   withoutAnswer(hosts.Retention.RenameDiverged),
	rule: authz.Changes(authz.RenameDiverged, authz.DivergedNames),
}

// RenameDiverged calls the agent.
func (r *Remote) RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error {
	return command(ctx, r, opRenameDiverged, all)
}

var opDestroyOrphans = operation[[]zfs.Orphan, none]{
	name:    "remove-gone",
	do:      withoutAnswer(hosts.Retention.DestroyOrphans),
	rule:    authz.Changes(authz.DestroyOrphans, authz.OrphanNames),
	request: manyNames,
}

// DestroyOrphans calls the agent.
func (r *Remote) DestroyOrphans(ctx context.Context, all []zfs.Orphan) error {
	return command(ctx, r, opDestroyOrphans, all)
}

var opDamage = operation[string, zfs.Damage]{
	name:   "damage",
	do:     withAnswer(hosts.Healer.Damage),
	rule:   authz.Reads(authz.Damage),
	answer: func(string, int) int { return 2 * maxAnswer },
	check:  hosts.CheckDamage,
}

// Damage calls the agent.
func (r *Remote) Damage(ctx context.Context, dataset string) (zfs.Damage, error) {
	return query(ctx, r, opDamage, dataset, nil)
}

var opScrub = operation[string, none]{
	name: "scrub",
	do:   withoutAnswer(hosts.Healer.Scrub),
	rule: authz.Changes(authz.Scrub, authz.Name),
}

// Scrub calls the agent.
func (r *Remote) Scrub(ctx context.Context, dataset string) error {
	return command(ctx, r, opScrub, dataset)
}

var opSync = operation[string, none]{
	name: "sync",
	do:   withoutAnswer(hosts.Healer.Sync),
	rule: authz.Reads(authz.Sync),
}

// Sync calls the agent.
func (r *Remote) Sync(ctx context.Context, dataset string) error {
	return command(ctx, r, opSync, dataset)
}

var opRevert = operation[string, none]{
	name: "revert",
	do:   withoutAnswer(hosts.Healer.Revert),
	rule: authz.Changes(authz.Revert, authz.Name),
}

// Revert calls the agent.
func (r *Remote) Revert(ctx context.Context, snapshot string) error {
	return command(ctx, r, opRevert, snapshot)
}

var opCreateDrillClone = operation[zfs.DrillClone, string]{
	name:  "clone-aside",
	do:    withAnswer(hosts.DrillHost.CreateDrillClone),
	rule:  authz.Changes(authz.CreateDrillClone, authz.DrillSnapshotName),
	check: hosts.CheckDrillClone,
}

// CreateDrillClone calls the agent.
func (r *Remote) CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error) {
	return query(ctx, r, opCreateDrillClone, a, nil)
}

var opDestroyDrillClones = operation[zfs.DrillClones, none]{
	name:    "remove-aside",
	do:      withoutAnswer(hosts.DrillHost.DestroyDrillClones),
	rule:    authz.Changes(authz.DestroyDrillClones, authz.DrillDatasetNames),
	request: manyNames,
}

// DestroyDrillClones calls the agent.
func (r *Remote) DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error {
	return command(ctx, r, opDestroyDrillClones, a)
}

var opRunInDrillClone = operation[zfs.DrillCommand, zfs.DrillResult]{
	name:   "run-aside",
	do:     withAnswer(hosts.DrillHost.RunInDrillClone),
	rule:   authz.Never[zfs.DrillCommand]("a restricted key runs no command"),
	answer: func(zfs.DrillCommand, int) int { return 4 * zfs.MaxDrillOutput },
	check:  hosts.CheckDrillResult,
	long:   true,
}

// RunInDrillClone calls the agent.
func (r *Remote) RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error) {
	return query(ctx, r, opRunInDrillClone, a, nil)
}
