package agent

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// allOperations returns the operations of an agent.
func allOperations() []registrable {
	return []registrable{
		opFacts, opHostFacts, opList, opDatasetOf, opProperties, opEstimate, opSnapshot, opHold, opRelease, opHolds, opBookmark,
		opDestroy, opCreateParents, opDiscard, opDigest, opOffer, opTransfer, opInspectDevice, opDeviceState, opDigestDevice,
		opReadFiles, opCapture, opMeasure, opSetProperties, opMount, opUnmount, opRollback, opInheritKey, opInheritKeyAsserted, opMakeEncryptionRoot, opInUse,
		opCreateDrillClone, opDestroyDrillClones, opRunInDrillClone,
		opSnapshotFrozen,
		opRenameDiverged, opDestroyOrphans,
		opDamage, opScrub, opRevert, opSync,
	}
}

// Maximum cost of arguments with names of snapshots (about 70 bytes each), and of streams,
// which name all their snapshots.
const (
	manyNames   = 3 * maxRequest
	manyStreams = maxRequest
)

var _ hosts.FullHost = (*Remote)(nil)

// Name returns the host as the user typed it.
func (r *Remote) Name() string { return r.host }

// RTT returns the shortest round-trip time of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

var opFacts = operation[none, hosts.Facts]{
	name:  "facts",
	do:    withAnswer(func(s hosts.Host, ctx context.Context, _ none) (hosts.Facts, error) { return s.Facts(ctx) }),
	rule:  authz.Reads(authz.AllowAll[none]),
	check: func(_ none, f *hosts.Facts) error { return hosts.CheckFacts(f) },
}

// Facts calls the agent.
func (r *Remote) Facts(ctx context.Context) (hosts.Facts, error) {
	return query(ctx, r, opFacts, none{}, nil)
}

var opHostFacts = operation[none, hosts.Facts]{
	name:  "host-facts",
	do:    withAnswer(func(s hosts.Host, ctx context.Context, _ none) (hosts.Facts, error) { return s.HostFacts(ctx) }),
	rule:  authz.Reads(authz.AllowAll[none]), // reveals less than facts
	check: opFacts.check,
}

// HostFacts calls the agent.
func (r *Remote) HostFacts(ctx context.Context) (hosts.Facts, error) {
	return query(ctx, r, opHostFacts, none{}, nil)
}

var opList = operation[hosts.ListQuery, zfs.Listing]{
	name:    "list",
	do:      withAnswer(hosts.Lister.List),
	rule:    authz.Reads(authz.List),
	request: manyNames,
	answer:  func(hosts.ListQuery, int) int { return 6 * maxAnswer },
	check:   hosts.CheckListing,
}

// List calls the agent.
func (r *Remote) List(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	return query(ctx, r, opList, q, nil)
}

var opDatasetOf = operation[string, string]{
	name: "dataset-of",
	do:   withAnswer(hosts.Lister.DatasetOf),
	rule: authz.Reads(authz.DatasetOf),
	check: func(_ string, dataset *string) error {
		_, err := zfs.ParseDataset(*dataset)
		return err
	},
}

// DatasetOf calls the agent.
func (r *Remote) DatasetOf(ctx context.Context, path string) (string, error) {
	return query(ctx, r, opDatasetOf, path, nil)
}

type properties = map[string]map[string]zfs.Property

var opProperties = operation[authz.PropertyQuery, properties]{
	name: "properties",
	do: withAnswer(func(s hosts.Lister, ctx context.Context, q authz.PropertyQuery) (properties, error) {
		return s.Properties(ctx, q.Names, q.Properties)
	}),
	rule:    authz.Reads(authz.Properties),
	request: manyNames,
	// Values have up to 8 KiB. A query without names returns all set properties.
	answer: func(q authz.PropertyQuery, _ int) int {
		return min(6*maxAnswer, len(q.Names)*(len(q.Properties)+8)*(10<<10))
	},
	check: func(q authz.PropertyQuery, m *properties) error {
		return hosts.CheckProperties(q.Names, q.Properties, *m)
	},
}

// Properties calls the agent.
func (r *Remote) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	return query(ctx, r, opProperties, authz.PropertyQuery{Names: names, Properties: properties}, nil)
}

var opEstimate = operation[[]zfs.SendSpec, []uint64]{
	name:    "estimate",
	do:      withAnswer(hosts.Lister.Estimate),
	rule:    authz.Reads(authz.Estimate),
	request: manyStreams,
	answer:  func(streams []zfs.SendSpec, _ int) int { return len(streams) * 2 * budget.One },
	check: func(streams []zfs.SendSpec, sizes *[]uint64) error {
		if len(*sizes) != len(streams) {
			return fmt.Errorf("%d sizes of %d streams", len(*sizes), len(streams))
		}
		return nil
	},
}

// Estimate calls the agent, in several requests if there are too many streams for one.
func (r *Remote) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	for _, some := range requestsOf(streams) {
		part, err := query(ctx, r, opEstimate, some, nil)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, part...)
	}
	return sizes, nil
}

// requestsOf splits streams into requests that an agent accepts.
func requestsOf(streams []zfs.SendSpec) [][]zfs.SendSpec {
	const most = 4 << 20
	var out [][]zfs.SendSpec
	first, cost := 0, 0
	for i, s := range streams {
		own := 1<<10 + len(s.Token)
		for _, t := range s.Through {
			own += len(t) + 2*budget.One
		}
		if i > first && cost+own > most {
			out, first, cost = append(out, streams[first:i]), i, 0
		}
		cost += own
	}
	return append(out, streams[first:])
}

var opHolds = operation[[]string, map[string][]string]{
	name:    "holds",
	do:      withAnswer(hosts.Lister.Holds),
	rule:    authz.Reads(authz.Holds),
	request: manyNames,
	answer:  func(_ []string, question int) int { return 4 * question },
	check:   func(snapshots []string, tags *map[string][]string) error { return hosts.CheckHolds(snapshots, *tags) },
}

// Holds calls the agent.
func (r *Remote) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return query(ctx, r, opHolds, snapshots, nil)
}
