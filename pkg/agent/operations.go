package agent

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/budget"
	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/option"
	"zxfer/pkg/policy"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// all are the operations of an agent.
func all() []servable {
	return []servable{
		opFacts, opHostFacts, opList, opDatasetOf, opProperties, opEstimate, opSnapshot, opHold, opRelease, opHolds, opBookmark,
		opDestroy, opCreateParents, opDiscard, opDigest, opOffer, opTransfer, opInspectDevice, opDeviceState, opDigestDevice,
		opReadFiles, opCapture, opMeasure, opSetProperties, opMount, opUnmount, opRollback, opInheritKey, opInheritKeyAsserted, opMakeEncryptionRoot, opInUse,
		opCreateDrillClone, opDestroyDrillClones, opRunInDrillClone,
		opSnapshotFrozen,
		opRenameDiverged, opDestroyOrphans,
		opDamage, opScrub, opRevert, opSync,
	}
}

// The most that arguments of names of snapshots may cost, some 70 bytes each, and
// those of streams, which name all snapshots in them.
const (
	manyNames   = 3 * maxRequest
	manyStreams = maxRequest
)

var _ site.FullHost = (*Remote)(nil)

// Name is the host as it was typed.
func (r *Remote) Name() string { return r.host }

// RTT is the shortest round trip of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

var opFacts = operation[none, site.Facts]{
	name:  "facts",
	do:    asks(func(s site.Host, ctx context.Context, _ none) (site.Facts, error) { return s.Facts(ctx) }),
	rule:  policy.Reads(policy.Anything[none]),
	check: func(_ none, f *site.Facts) error { return site.CheckFacts(f) },
}

// Facts asks the agent.
func (r *Remote) Facts(ctx context.Context) (site.Facts, error) {
	return ask(ctx, r, opFacts, none{}, nil)
}

var opHostFacts = operation[none, site.Facts]{
	name:  "host-facts",
	do:    asks(func(s site.Host, ctx context.Context, _ none) (site.Facts, error) { return s.HostFacts(ctx) }),
	rule:  policy.Reads(policy.Anything[none]), // less than facts
	check: opFacts.check,
}

// HostFacts asks the agent.
func (r *Remote) HostFacts(ctx context.Context) (site.Facts, error) {
	return ask(ctx, r, opHostFacts, none{}, nil)
}

var opList = operation[site.ListQuery, zfs.Listing]{
	name:    "list",
	do:      asks(site.Lister.List),
	rule:    policy.Reads(policy.List),
	request: manyNames,
	answer:  func(site.ListQuery, int) int { return 6 * maxAnswer },
	check:   site.CheckListing,
}

// List asks the agent.
func (r *Remote) List(ctx context.Context, q site.ListQuery) (zfs.Listing, error) {
	return ask(ctx, r, opList, q, nil)
}

var opDatasetOf = operation[string, string]{
	name: "dataset-of",
	do:   asks(site.Lister.DatasetOf),
	rule: policy.Reads(policy.DatasetOf),
	check: func(_ string, dataset *string) error {
		_, err := zfs.ParseDataset(*dataset)
		return err
	},
}

// DatasetOf asks the agent.
func (r *Remote) DatasetOf(ctx context.Context, path string) (string, error) {
	return ask(ctx, r, opDatasetOf, path, nil)
}

type properties = map[string]map[string]zfs.Property

var opProperties = operation[policy.PropertyQuery, properties]{
	name: "properties",
	do: asks(func(s site.Lister, ctx context.Context, q policy.PropertyQuery) (properties, error) {
		return s.Properties(ctx, q.Names, q.Properties)
	}),
	rule:    policy.Reads(policy.Properties),
	request: manyNames,
	// Values have up to 8 KiB; without names it is those that are set.
	answer: func(q policy.PropertyQuery, _ int) int {
		return min(6*maxAnswer, len(q.Names)*(len(q.Properties)+8)*(10<<10))
	},
	check: func(q policy.PropertyQuery, m *properties) error {
		return site.CheckProperties(q.Names, q.Properties, *m)
	},
}

// Properties asks the agent.
func (r *Remote) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	return ask(ctx, r, opProperties, policy.PropertyQuery{Names: names, Properties: properties}, nil)
}

var opEstimate = operation[[]zfs.SendSpec, []uint64]{
	name:    "estimate",
	do:      asks(site.Lister.Estimate),
	rule:    policy.Reads(policy.Estimate),
	request: manyStreams,
	answer:  func(streams []zfs.SendSpec, _ int) int { return len(streams) * 2 * budget.One },
	check: func(streams []zfs.SendSpec, sizes *[]uint64) error {
		if len(*sizes) != len(streams) {
			return fmt.Errorf("%d sizes of %d streams", len(*sizes), len(streams))
		}
		return nil
	},
}

// Estimate asks the agent, in parts where the streams are so many that it would
// not take them at once.
func (r *Remote) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	for _, some := range requestsOf(streams) {
		part, err := ask(ctx, r, opEstimate, some, nil)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, part...)
	}
	return sizes, nil
}

var opSnapshot = operation[[]string, none]{
	name:    "snapshot",
	do:      does(site.Snapshots.Snapshot),
	rule:    policy.Changes(policy.Snapshot, policy.Names),
	request: manyNames,
}

// Snapshot asks the agent.
func (r *Remote) Snapshot(ctx context.Context, snapshots []string) error {
	return tell(ctx, r, opSnapshot, snapshots)
}

var opHold = operation[policy.Tagged, none]{
	name: "hold",
	do: does(func(s site.Snapshots, ctx context.Context, h policy.Tagged) error {
		return s.Hold(ctx, h.Tag, h.Snapshots)
	}),
	rule:    policy.Changes(policy.Hold, policy.Tags),
	request: manyNames,
}

// Hold asks the agent.
func (r *Remote) Hold(ctx context.Context, tag string, snapshots []string) error {
	return tell(ctx, r, opHold, policy.Tagged{Tag: tag, Snapshots: snapshots})
}

var opRelease = operation[policy.Tagged, none]{
	name: "release",
	do: does(func(s site.Snapshots, ctx context.Context, h policy.Tagged) error {
		return s.Release(ctx, h.Tag, h.Snapshots)
	}),
	rule:    policy.Changes(policy.Release, policy.Tags),
	request: manyNames,
}

// Release asks the agent.
func (r *Remote) Release(ctx context.Context, tag string, snapshots []string) error {
	return tell(ctx, r, opRelease, policy.Tagged{Tag: tag, Snapshots: snapshots})
}

var opHolds = operation[[]string, map[string][]string]{
	name:    "holds",
	do:      asks(site.Lister.Holds),
	rule:    policy.Reads(policy.Holds),
	request: manyNames,
	answer:  func(_ []string, question int) int { return 4 * question },
	check:   func(snapshots []string, tags *map[string][]string) error { return site.CheckHolds(snapshots, *tags) },
}

// Holds asks the agent.
func (r *Remote) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return ask(ctx, r, opHolds, snapshots, nil)
}

var opBookmark = operation[map[string]string, none]{
	name:    "bookmark",
	do:      does(site.Snapshots.Bookmark),
	rule:    policy.Changes(policy.Bookmark, policy.Marks),
	request: manyNames,
}

// Bookmark asks the agent.
func (r *Remote) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return tell(ctx, r, opBookmark, bookmarks)
}

var opDestroy = operation[[]string, none]{
	name:    "destroy",
	do:      does(site.Snapshots.Destroy),
	rule:    policy.Changes(policy.Destroy, policy.Names),
	request: manyNames,
}

// Destroy asks the agent.
func (r *Remote) Destroy(ctx context.Context, versions []string) error {
	return tell(ctx, r, opDestroy, versions)
}

var opCreateParents = operation[string, none]{
	name: "create-parents",
	do:   does(site.Snapshots.CreateParents),
	rule: policy.Changes(policy.CreateParents, policy.Name),
}

// CreateParents asks the agent.
func (r *Remote) CreateParents(ctx context.Context, dataset string) error {
	return tell(ctx, r, opCreateParents, dataset)
}

var opDiscard = operation[string, none]{
	name: "discard-partial",
	do:   does(site.Snapshots.DiscardPartial),
	rule: policy.Changes(policy.DiscardPartial, policy.Name),
}

// DiscardPartial asks the agent.
func (r *Remote) DiscardPartial(ctx context.Context, dataset string) error {
	return tell(ctx, r, opDiscard, dataset)
}

var opDigest = operation[site.ContentQuery, site.Digest]{
	name:    "digest",
	do:      lasts(site.Digester.Digest),
	rule:    policy.Reads(policy.Digest),
	request: manyStreams,
	check:   func(_ site.ContentQuery, d *site.Digest) error { return site.CheckDigest(d) },
	long:    true,
}

// Digest asks the agent.
func (r *Remote) Digest(ctx context.Context, q site.ContentQuery, report func(transfer.Progress)) (site.Digest, error) {
	return ask(ctx, r, opDigest, q, report)
}

var opOffer = operation[wire.Offer, wire.Ticket]{
	name:  "offer",
	do:    asks(site.Mover.Offer),
	rule:  policy.Reads(policy.Offer),
	check: site.CheckTicket,
}

// Offer asks the agent.
func (r *Remote) Offer(ctx context.Context, o wire.Offer) (wire.Ticket, error) {
	return ask(ctx, r, opOffer, o, nil)
}

var opTransfer = operation[site.Task, site.Result]{
	name:    "transfer",
	do:      lasts(site.Mover.Transfer),
	rule:    policy.Changes(policy.Transfer, policy.Streams),
	request: manyStreams,
	answer: func(t site.Task, _ int) int {
		switch t.Moves() {
		case "device":
			return 64 << 20 // what could not be read of it
		case "files":
			return 8 << 20
		}
		return 0
	},
	check:  site.CheckResult,
	long:   true,
	secret: true,
}

// Transfer asks the agent.
func (r *Remote) Transfer(ctx context.Context, t site.Task, report func(transfer.Progress)) (site.Result, error) {
	return ask(ctx, r, opTransfer, t, report)
}

var opInspectDevice = operation[string, device.Facts]{
	name:  "inspect-device",
	do:    asks(site.Devices.InspectDevice),
	check: site.CheckDevice,
}

// InspectDevice asks the agent.
func (r *Remote) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	return ask(ctx, r, opInspectDevice, path, nil)
}

var opDeviceState = operation[device.Task, device.State]{
	name: "device-state",
	do: asks(func(s site.Devices, ctx context.Context, t device.Task) (device.State, error) {
		state, err := s.DeviceState(ctx, t)
		state.Unusable = option.Flags(state.Unusable) // no job file has devices
		return state, err
	}),
	check: site.CheckDeviceState,
}

// DeviceState asks the agent.
func (r *Remote) DeviceState(ctx context.Context, t device.Task) (device.State, error) {
	return ask(ctx, r, opDeviceState, t, nil)
}

var opDigestDevice = operation[device.DigestQuery, device.Digest]{
	name:  "digest-device",
	do:    lasts(site.Devices.DigestDevice),
	check: site.CheckDeviceDigest,
	long:  true,
}

// DigestDevice asks the agent.
func (r *Remote) DigestDevice(ctx context.Context, q device.DigestQuery, report func(transfer.Progress)) (device.Digest, error) {
	return ask(ctx, r, opDigestDevice, q, report)
}

var opReadFiles = operation[files.Query, files.Digest]{
	name: "read-files",
	do:   lasts(site.FileReader.ReadFiles),
	rule: policy.Reads(policy.ReadFiles),
	answer: func(q files.Query, _ int) int {
		if q.Within == 0 {
			return files.Parts*budget.One + files.MaxProblems*(8<<10)
		}
		return 6 * maxAnswer
	},
	check: site.CheckFiles,
	long:  true,
}

// ReadFiles asks the agent.
func (r *Remote) ReadFiles(ctx context.Context, q files.Query, report func(transfer.Progress)) (files.Digest, error) {
	return ask(ctx, r, opReadFiles, q, report)
}

var opCapture = operation[bool, []byte]{
	name:   "capture",
	do:     asks(site.Measurer.Capture),
	rule:   policy.Reads(policy.HostFacts[bool]),
	answer: func(bool, int) int { return 32 << 20 },
}

// Capture asks the agent.
func (r *Remote) Capture(ctx context.Context, brief bool) ([]byte, error) {
	return ask(ctx, r, opCapture, brief, nil)
}

var opMeasure = operation[probe.Request, probe.Ceiling]{
	name:    "measure",
	do:      asks(site.Measurer.Measure),
	request: manyStreams,
	check:   site.CheckCeiling,
	long:    true,
	secret:  true,
}

// Measure asks the agent.
func (r *Remote) Measure(ctx context.Context, q probe.Request) (probe.Ceiling, error) {
	return ask(ctx, r, opMeasure, q, nil)
}
