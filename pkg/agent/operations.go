package agent

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/budget"
	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/option"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
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

var _ hosts.FullHost = (*Remote)(nil)

// Name is the host as it was typed.
func (r *Remote) Name() string { return r.host }

// RTT is the shortest round trip of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

var opFacts = operation[none, hosts.Facts]{
	name:  "facts",
	do:    asks(func(s hosts.Host, ctx context.Context, _ none) (hosts.Facts, error) { return s.Facts(ctx) }),
	rule:  authz.Reads(authz.Anything[none]),
	check: func(_ none, f *hosts.Facts) error { return hosts.CheckFacts(f) },
}

// Facts asks the agent.
func (r *Remote) Facts(ctx context.Context) (hosts.Facts, error) {
	return ask(ctx, r, opFacts, none{}, nil)
}

var opHostFacts = operation[none, hosts.Facts]{
	name:  "host-facts",
	do:    asks(func(s hosts.Host, ctx context.Context, _ none) (hosts.Facts, error) { return s.HostFacts(ctx) }),
	rule:  authz.Reads(authz.Anything[none]), // less than facts
	check: opFacts.check,
}

// HostFacts asks the agent.
func (r *Remote) HostFacts(ctx context.Context) (hosts.Facts, error) {
	return ask(ctx, r, opHostFacts, none{}, nil)
}

var opList = operation[hosts.ListQuery, zfs.Listing]{
	name:    "list",
	do:      asks(hosts.Lister.List),
	rule:    authz.Reads(authz.List),
	request: manyNames,
	answer:  func(hosts.ListQuery, int) int { return 6 * maxAnswer },
	check:   hosts.CheckListing,
}

// List asks the agent.
func (r *Remote) List(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	return ask(ctx, r, opList, q, nil)
}

var opDatasetOf = operation[string, string]{
	name: "dataset-of",
	do:   asks(hosts.Lister.DatasetOf),
	rule: authz.Reads(authz.DatasetOf),
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

var opProperties = operation[authz.PropertyQuery, properties]{
	name: "properties",
	do: asks(func(s hosts.Lister, ctx context.Context, q authz.PropertyQuery) (properties, error) {
		return s.Properties(ctx, q.Names, q.Properties)
	}),
	rule:    authz.Reads(authz.Properties),
	request: manyNames,
	// Values have up to 8 KiB; without names it is those that are set.
	answer: func(q authz.PropertyQuery, _ int) int {
		return min(6*maxAnswer, len(q.Names)*(len(q.Properties)+8)*(10<<10))
	},
	check: func(q authz.PropertyQuery, m *properties) error {
		return hosts.CheckProperties(q.Names, q.Properties, *m)
	},
}

// Properties asks the agent.
func (r *Remote) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	return ask(ctx, r, opProperties, authz.PropertyQuery{Names: names, Properties: properties}, nil)
}

var opEstimate = operation[[]zfs.SendSpec, []uint64]{
	name:    "estimate",
	do:      asks(hosts.Lister.Estimate),
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
	do:      does(hosts.Snapshots.Snapshot),
	rule:    authz.Changes(authz.Snapshot, authz.Names),
	request: manyNames,
}

// Snapshot asks the agent.
func (r *Remote) Snapshot(ctx context.Context, snapshots []string) error {
	return tell(ctx, r, opSnapshot, snapshots)
}

var opHold = operation[authz.Tagged, none]{
	name: "hold",
	do: does(func(s hosts.Snapshots, ctx context.Context, h authz.Tagged) error {
		return s.Hold(ctx, h.Tag, h.Snapshots)
	}),
	rule:    authz.Changes(authz.Hold, authz.Tags),
	request: manyNames,
}

// Hold asks the agent.
func (r *Remote) Hold(ctx context.Context, tag string, snapshots []string) error {
	return tell(ctx, r, opHold, authz.Tagged{Tag: tag, Snapshots: snapshots})
}

var opRelease = operation[authz.Tagged, none]{
	name: "release",
	do: does(func(s hosts.Snapshots, ctx context.Context, h authz.Tagged) error {
		return s.Release(ctx, h.Tag, h.Snapshots)
	}),
	rule:    authz.Changes(authz.Release, authz.Tags),
	request: manyNames,
}

// Release asks the agent.
func (r *Remote) Release(ctx context.Context, tag string, snapshots []string) error {
	return tell(ctx, r, opRelease, authz.Tagged{Tag: tag, Snapshots: snapshots})
}

var opHolds = operation[[]string, map[string][]string]{
	name:    "holds",
	do:      asks(hosts.Lister.Holds),
	rule:    authz.Reads(authz.Holds),
	request: manyNames,
	answer:  func(_ []string, question int) int { return 4 * question },
	check:   func(snapshots []string, tags *map[string][]string) error { return hosts.CheckHolds(snapshots, *tags) },
}

// Holds asks the agent.
func (r *Remote) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return ask(ctx, r, opHolds, snapshots, nil)
}

var opBookmark = operation[map[string]string, none]{
	name:    "bookmark",
	do:      does(hosts.Snapshots.Bookmark),
	rule:    authz.Changes(authz.Bookmark, authz.Marks),
	request: manyNames,
}

// Bookmark asks the agent.
func (r *Remote) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return tell(ctx, r, opBookmark, bookmarks)
}

var opDestroy = operation[[]string, none]{
	name:    "destroy",
	do:      does(hosts.Snapshots.Destroy),
	rule:    authz.Changes(authz.Destroy, authz.Names),
	request: manyNames,
}

// Destroy asks the agent.
func (r *Remote) Destroy(ctx context.Context, versions []string) error {
	return tell(ctx, r, opDestroy, versions)
}

var opCreateParents = operation[string, none]{
	name: "create-parents",
	do:   does(hosts.Snapshots.CreateParents),
	rule: authz.Changes(authz.CreateParents, authz.Name),
}

// CreateParents asks the agent.
func (r *Remote) CreateParents(ctx context.Context, dataset string) error {
	return tell(ctx, r, opCreateParents, dataset)
}

var opDiscard = operation[string, none]{
	name: "discard-partial",
	do:   does(hosts.Snapshots.DiscardPartial),
	rule: authz.Changes(authz.DiscardPartial, authz.Name),
}

// DiscardPartial asks the agent.
func (r *Remote) DiscardPartial(ctx context.Context, dataset string) error {
	return tell(ctx, r, opDiscard, dataset)
}

var opDigest = operation[hosts.ContentQuery, hosts.Digest]{
	name:    "digest",
	do:      lasts(hosts.Digester.Digest),
	rule:    authz.Reads(authz.Digest),
	request: manyStreams,
	check:   func(_ hosts.ContentQuery, d *hosts.Digest) error { return hosts.CheckDigest(d) },
	long:    true,
}

// Digest asks the agent.
func (r *Remote) Digest(ctx context.Context, q hosts.ContentQuery, report func(transfer.Progress)) (hosts.Digest, error) {
	return ask(ctx, r, opDigest, q, report)
}

var opOffer = operation[tcp.Offer, tcp.Ticket]{
	name:  "offer",
	do:    asks(hosts.Mover.Offer),
	rule:  authz.Reads(authz.Offer),
	check: hosts.CheckTicket,
}

// Offer asks the agent.
func (r *Remote) Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error) {
	return ask(ctx, r, opOffer, o, nil)
}

var opTransfer = operation[hosts.Task, hosts.Result]{
	name:    "transfer",
	do:      lasts(hosts.Mover.Transfer),
	rule:    authz.Changes(authz.Transfer, authz.Streams),
	request: manyStreams,
	answer: func(t hosts.Task, _ int) int {
		switch t.Moves() {
		case "device":
			return 64 << 20 // what could not be read of it
		case "files":
			return 8 << 20
		}
		return 0
	},
	check:  hosts.CheckResult,
	long:   true,
	secret: true,
}

// Transfer asks the agent.
func (r *Remote) Transfer(ctx context.Context, t hosts.Task, report func(transfer.Progress)) (hosts.Result, error) {
	return ask(ctx, r, opTransfer, t, report)
}

var opInspectDevice = operation[string, device.Facts]{
	name:  "inspect-device",
	do:    asks(hosts.Devices.InspectDevice),
	check: hosts.CheckDevice,
}

// InspectDevice asks the agent.
func (r *Remote) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	return ask(ctx, r, opInspectDevice, path, nil)
}

var opDeviceState = operation[device.Task, device.State]{
	name: "device-state",
	do: asks(func(s hosts.Devices, ctx context.Context, t device.Task) (device.State, error) {
		state, err := s.DeviceState(ctx, t)
		state.Unusable = option.Flags(state.Unusable) // no job file has devices
		return state, err
	}),
	check: hosts.CheckDeviceState,
}

// DeviceState asks the agent.
func (r *Remote) DeviceState(ctx context.Context, t device.Task) (device.State, error) {
	return ask(ctx, r, opDeviceState, t, nil)
}

var opDigestDevice = operation[device.DigestQuery, device.Digest]{
	name:  "digest-device",
	do:    lasts(hosts.Devices.DigestDevice),
	check: hosts.CheckDeviceDigest,
	long:  true,
}

// DigestDevice asks the agent.
func (r *Remote) DigestDevice(ctx context.Context, q device.DigestQuery, report func(transfer.Progress)) (device.Digest, error) {
	return ask(ctx, r, opDigestDevice, q, report)
}

var opReadFiles = operation[files.Query, files.Digest]{
	name: "read-files",
	do:   lasts(hosts.FileReader.ReadFiles),
	rule: authz.Reads(authz.ReadFiles),
	answer: func(q files.Query, _ int) int {
		if q.Within == 0 {
			return files.Parts*budget.One + files.MaxProblems*(8<<10)
		}
		return 6 * maxAnswer
	},
	check: hosts.CheckFiles,
	long:  true,
}

// ReadFiles asks the agent.
func (r *Remote) ReadFiles(ctx context.Context, q files.Query, report func(transfer.Progress)) (files.Digest, error) {
	return ask(ctx, r, opReadFiles, q, report)
}

var opCapture = operation[bool, []byte]{
	name:   "capture",
	do:     asks(hosts.Measurer.Capture),
	rule:   authz.Reads(authz.HostFacts[bool]),
	answer: func(bool, int) int { return 32 << 20 },
}

// Capture asks the agent.
func (r *Remote) Capture(ctx context.Context, brief bool) ([]byte, error) {
	return ask(ctx, r, opCapture, brief, nil)
}

var opMeasure = operation[probe.Request, probe.Ceiling]{
	name:    "measure",
	do:      asks(hosts.Measurer.Measure),
	request: manyStreams,
	check:   hosts.CheckCeiling,
	long:    true,
	secret:  true,
}

// Measure asks the agent.
func (r *Remote) Measure(ctx context.Context, q probe.Request) (probe.Ceiling, error) {
	return ask(ctx, r, opMeasure, q, nil)
}
