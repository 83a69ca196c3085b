package hosts

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/budget"
	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/freeze"
	"zxfer/pkg/option"
	"zxfer/pkg/probe"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Operations returns all operations.
func Operations() []Operation {
	return []Operation{
		OpFacts, OpHostFacts, OpList, OpDatasetOf, OpProperties, OpEstimate, OpHolds, OpPermitted,
		OpSnapshot, OpSnapshotFrozen, OpHold, OpRelease, OpBookmark, OpDestroy, OpCreateParents, OpDiscardPartial,
		OpDigest, OpOffer, OpTransfer, OpReadFiles, OpBlockSizes, OpInspectDevice, OpDeviceState, OpDigestDevice, OpDigestVolume, OpCapture, OpMeasure,
		OpSetProperties, OpMount, OpMountpoints, OpUnmount, OpRollback, OpInheritKey, OpInheritKeyAsserted, OpMakeEncryptionRoot, OpInUse,
		OpDamage, OpScrub, OpSync, OpRevert,
		OpFindPools, OpImportPool, OpExportPool,
		OpCreateDrillClone, OpDestroyDrillClones, OpRunInDrillClone,
		OpRenameDiverged, OpRenameCopies, OpDestroyOrphans, OpApply,
	}
}

// Limits of one request and one answer, in bytes of JSON. Package budget limits the memory to decode
// them.
const (
	MaxRequest = 16 << 20 // names of about 100,000 snapshots
	MaxAnswer  = 64 << 20 // a listing of about 200,000 versions
)

// MaxText limits the memory for the text that a host without zxfer prints during one request, in bytes as
// budget.Rows estimates it. A listing of 200,000 versions needs 150 MB.
const MaxText = 4 * MaxAnswer

// Maximum cost of arguments with names of snapshots (about 70 bytes each), and of streams, which
// name all their snapshots.
const (
	manyNames   = 3 * MaxRequest
	manyStreams = MaxRequest
)

// Arguments of operations with more than one value.
type (
	PropertyQuery struct {
		Names      []string `json:"names"`
		Properties []string `json:"properties"`
	}
	// Tagged lists snapshots and the tag of a hold on each.
	Tagged struct {
		Tag       string   `json:"tag"`
		Snapshots []string `json:"snapshots"`
	}
)

// PropertiesByName holds properties by the full name of a dataset or version.
type PropertiesByName = map[string]map[string]zfs.Property

// OpFacts returns facts that are constant during a run.
var OpFacts = Op[None, Facts]{
	name:  "facts",
	plain: func(on Plain, ctx context.Context, _ None) (Facts, error) { return on.Facts(ctx) },
	check: func(_ None, f *Facts) error { return CheckFacts(f) },
}

// OpHostFacts is like OpFacts, but also works without ZFS. Backend is then "", and ZFS is "" if it is
// not loaded.
var OpHostFacts = Op[None, Facts]{
	name:  "host-facts",
	plain: func(on Plain, ctx context.Context, _ None) (Facts, error) { return on.HostFacts(ctx) },
	check: OpFacts.check,
}

// OpList lists datasets in one call. If the dataset does not exist, Datasets is empty. If the pool
// does not exist, the error is a *zfs.Error of kind NotFound.
var OpList = Op[ListQuery, zfs.Listing]{
	name:    "list",
	plain:   Plain.List,
	request: manyNames,
	answer:  func(ListQuery, int) int { return 6 * MaxAnswer },
	check:   checkListing,
}

// OpDatasetOf returns the dataset that contains an absolute path. If the path is not on ZFS, the
// error is a *zfs.Error of kind NotFound.
var OpDatasetOf = Op[string, string]{
	name:  "dataset-of",
	plain: Plain.DatasetOf,
	check: func(_ string, dataset *string) error {
		_, err := zfs.ParseDataset(*dataset)
		return err
	},
}

// OpProperties returns properties by the full name of a dataset or version. It skips names that do
// not exist. If Properties is empty, it returns locally set ones.
var OpProperties = Op[PropertyQuery, PropertiesByName]{
	name: "properties",
	plain: func(on Plain, ctx context.Context, q PropertyQuery) (PropertiesByName, error) {
		return on.Properties(ctx, q.Names, q.Properties)
	},
	request: manyNames,
	// Values have up to 8 KiB. A query without names returns all set properties.
	answer: func(q PropertyQuery, _ int) int {
		return min(6*MaxAnswer, len(q.Names)*(len(q.Properties)+8)*(10<<10))
	},
	check: func(q PropertyQuery, m *PropertiesByName) error { return checkProperties(q.Names, q.Properties, *m) },
}

// OpEstimate returns the estimated size of each stream in bytes. The function Estimate splits lists
// of streams that are too long for one request.
var OpEstimate = Op[[]zfs.SendSpec, []uint64]{
	name:    "estimate",
	plain:   Plain.Estimate,
	request: manyStreams,
	answer:  func(streams []zfs.SendSpec, _ int) int { return len(streams) * 2 * budget.CommaCost },
	check: func(streams []zfs.SendSpec, sizes *[]uint64) error {
		if len(*sizes) != len(streams) {
			return fmt.Errorf("got %d sizes for %d streams", len(*sizes), len(streams))
		}
		return nil
	},
}

// OpHolds returns the tags of user holds by snapshot. It skips snapshots that have no holds or do not
// exist.
var OpHolds = Op[[]string, map[string][]string]{
	name:    "holds",
	plain:   Plain.Holds,
	request: manyNames,
	answer:  func(_ []string, request int) int { return 4 * request },
	check:   func(snapshots []string, tags *map[string][]string) error { return checkHolds(snapshots, *tags) },
}

// OpPermitted returns the permissions that zfs allow gave, on an existing dataset, to the account that zxfer
// uses there.
var OpPermitted = Op[string, zfs.Permitted]{
	name:  "permitted",
	plain: Plain.Permitted,
	check: func(_ string, p *zfs.Permitted) error { return p.Check() },
}

// OpSnapshot takes all snapshots ("pool/a@x") in one transaction.
var OpSnapshot = Op[[]string, None]{name: "snapshot", plain: withoutAnswer(Plain.Snapshot), request: manyNames, acts: []string{zfs.OpSnapshot}}

// OpSnapshotFrozen takes snapshots in one transaction while the requested applications are frozen. It
// runs commands and database clients. It sets freeze.Property on the snapshots that are proven to be
// consistent. A failure to freeze is part of the result, not an error.
var OpSnapshotFrozen = Op[freeze.Request, freeze.Result]{
	name:    "snapshot-frozen",
	acts:    []string{zfs.OpSnapshot, zfs.OpSet},
	full:    withoutProgress((*Local).SnapshotFrozen),
	ability: "freeze applications for a snapshot",
	request: manyNames,
	answer:  func(q freeze.Request, _ int) int { return (len(q.Applications) + 1) * 16 << 10 },
	check:   freeze.CheckResult,
	long:    true,
}

// OpHold places a user hold on each snapshot. It ignores existing holds.
var OpHold = Op[Tagged, None]{
	name: "hold",
	acts: []string{zfs.OpHold},
	plain: withoutAnswer(func(on Plain, ctx context.Context, h Tagged) error {
		return on.Hold(ctx, h.Tag, h.Snapshots)
	}),
	request: manyNames,
}

// OpRelease removes holds. It ignores missing holds and snapshots.
var OpRelease = Op[Tagged, None]{
	name: "release",
	acts: []string{zfs.OpRelease},
	plain: withoutAnswer(func(on Plain, ctx context.Context, h Tagged) error {
		return on.Release(ctx, h.Tag, h.Snapshots)
	}),
	request: manyNames,
}

// OpBookmark creates bookmarks. The map is from full bookmark name to full snapshot name. It ignores
// existing bookmarks with the same GUID.
var OpBookmark = Op[map[string]string, None]{name: "bookmark", plain: withoutAnswer(Plain.Bookmark), request: manyNames, acts: []string{zfs.OpBookmark}}

// OpDestroy destroys snapshots ("pool/a@x") and bookmarks ("pool/a#x"), never datasets. It ignores
// missing names.
var OpDestroy = Op[[]string, None]{name: "destroy", plain: withoutAnswer(Plain.Destroy), request: manyNames, acts: []string{zfs.OpDestroy}}

// OpCreateParents creates missing ancestors of a dataset as filesystems with canmount=off.
var OpCreateParents = Op[string, None]{name: "create-parents", plain: withoutAnswer(Plain.CreateParents), acts: []string{zfs.OpCreate}}

// OpDiscardPartial discards the partially received state of a dataset.
var OpDiscardPartial = Op[string, None]{name: "discard-partial", plain: withoutAnswer(Plain.DiscardPartial), acts: []string{zfs.OpDiscard}}

// OpDigest generates a stream and returns the digest of its contents instead of sending it (see
// zfs.ContentDigest).
var OpDigest = Op[ContentQuery, Digest]{
	name:       "digest",
	acts:       []string{zfs.OpSend},
	plainWatch: Plain.Digest,
	request:    manyStreams,
	check:      func(_ ContentQuery, d *Digest) error { return checkDigest(d) },
	long:       true,
}

const toMove = "send a stream"

// OpOffer opens a listener for one OpTransfer and returns the ticket for the other end. The listener
// closes after use, at the deadline, or when the Host is closed.
var OpOffer = Op[tcp.Offer, tcp.Ticket]{
	name:    "offer",
	full:    withoutProgress((*Local).Offer),
	ability: toMove,
	check:   checkTicket,
}

// OpTransfer does the host's part of a Task.
var OpTransfer = Op[Task, Result]{
	name:    "transfer",
	acts:    []string{zfs.OpSend},
	onCopy:  []string{zfs.OpReceive},
	full:    (*Local).Transfer,
	ability: toMove,
	request: manyStreams,
	answer: func(t Task, _ int) int {
		switch kind(t.Moves()) {
		case drive:
			return 64 << 20 // list of unreadable ranges
		case tree:
			return 8 << 20
		}
		return 0
	},
	check:  checkResult,
	long:   true,
	secret: true,
}

// OpReadFiles mounts a snapshot for this call alone and returns the digest of its files. Unreadable
// files are part of the digest, not an error.
var OpReadFiles = Op[files.Query, files.Digest]{
	name:    "read-files",
	acts:    []string{zfs.OpMount},
	full:    (*Local).ReadFiles,
	ability: "read or restore single files",
	answer: func(q files.Query, _ int) int {
		if q.Within == 0 {
			return files.Parts*budget.CommaCost + files.MaxProblems*(8<<10)
		}
		return 6 * MaxAnswer
	},
	check: checkFiles,
	long:  true,
}

// OpBlockSizes mounts a snapshot for this call alone and returns the block sizes of its files. It reads
// no contents.
var OpBlockSizes = Op[files.BlockQuery, files.BlockSizes]{
	name:    "block-sizes",
	acts:    []string{zfs.OpMount},
	full:    (*Local).ReadBlockSizes,
	ability: "compare the block sizes of files",
	answer:  func(files.BlockQuery, int) int { return files.MaxBlockAnswer },
	check: func(q files.BlockQuery, s *files.BlockSizes) error {
		if err := s.Check(q); err != nil {
			return err
		}
		return plausible(s, shown)
	},
	long: true,
}

const toCopyDevices = "copy devices"

// OpInspectDevice returns the facts of the device or image file at an absolute path.
var OpInspectDevice = Op[string, device.Facts]{
	name:    "inspect-device",
	full:    withoutProgress((*Local).InspectDevice),
	ability: toCopyDevices,
	check:   checkDevice,
}

// OpDeviceState returns what an interrupted copy to the task's target stored.
var OpDeviceState = Op[device.Task, device.State]{
	name: "device-state",
	full: withoutProgress(func(l *Local, ctx context.Context, t device.Task) (device.State, error) {
		state, err := l.DeviceState(ctx, t)
		state.Unusable = option.Flags(state.Unusable) // job files have no devices
		return state, err
	}),
	ability: toCopyDevices,
	check:   checkDeviceState,
}

// OpDigestDevice hashes a device.
var OpDigestDevice = Op[device.DigestQuery, device.Digest]{
	name:    "digest-device",
	full:    (*Local).DigestDevice,
	ability: toCopyDevices,
	check:   checkDeviceDigest,
	long:    true,
}

// OpDigestVolume hashes the contents of a volume's snapshot like a device. It reads the whole snapshot.
var OpDigestVolume = Op[VolumeDigestQuery, device.Digest]{
	name:    "digest-volume",
	full:    (*Local).DigestVolume,
	ability: toCopyDevices,
	check: func(q VolumeDigestQuery, d *device.Digest) error {
		return checkDeviceDigest(device.DigestQuery{Device: device.Facts{Size: q.Snapshot.Size}, Options: q.Options}, d)
	},
	long: true,
}

const toMeasure = "measure the host or read its system settings"

// maxCapture limits the answer of OpCapture in bytes.
const maxCapture = 32 << 20

// OpCapture returns the system files that facts are read from, as a text archive (see package
// sysinfo). It contains no key, password or address. A brief one runs no programs and takes
// milliseconds.
var OpCapture = Op[bool, string]{
	name:    "capture",
	full:    withoutProgress((*Local).Capture),
	ability: toMeasure,
	answer:  func(bool, int) int { return maxCapture },
}

// OpMeasure makes one measurement and deletes its data. Only probe.TargetWrite creates a scratch
// dataset, below an existing one.
var OpMeasure = Op[probe.Request, probe.Ceiling]{
	name:    "measure",
	full:    withoutProgress((*Local).Measure),
	ability: toMeasure,
	request: manyStreams,
	check:   checkCeiling,
	long:    true,
	secret:  true,
}

const toGiveBack = "make copies join an encryption root, or check what is in use"

// OpSetProperties changes properties of a dataset.
var OpSetProperties = Op[zfs.PropertyChange, None]{name: "set-properties", plain: withoutAnswer(Plain.SetProperties), acts: []string{zfs.OpSet}}

const toMount = "mount filesystems"

// OpMount mounts a filesystem at its mountpoint, onto a directory that it reaches without following links. It
// completes the request for a mounted one. It returns why the filesystem is not mounted at boot although the
// request asks for it, or "".
var OpMount = Op[zfs.MountRequest, string]{
	name:    "mount",
	acts:    []string{zfs.OpMount},
	full:    withoutProgress((*Local).Mount),
	ability: toMount,
	check:   func(_ zfs.MountRequest, why *string) error { return plausible(why, shown) },
}

// maxMountpoints limits the answer of OpMountpoints in bytes.
const maxMountpoints = MaxAnswer

// OpMountpoints returns the filesystems of all pools that are not mounted now, but that ZFS would mount.
var OpMountpoints = Op[None, []zfs.Mountpoint]{
	name:    "mountpoints",
	full:    withoutProgress(func(l *Local, ctx context.Context, _ None) ([]zfs.Mountpoint, error) { return l.Mountpoints(ctx) }),
	ability: toMount,
	answer:  func(None, int) int { return maxMountpoints },
	check:   func(_ None, all *[]zfs.Mountpoint) error { return plausible(all, shown) },
}

// OpUnmount unmounts a filesystem and all mounts below it. It ignores an unmounted one.
var OpUnmount = Op[string, None]{name: "unmount", plain: withoutAnswer(Plain.Unmount), acts: []string{zfs.OpUnmount}}

// OpRollback rolls a dataset back to a snapshot, and destroys the newer snapshots and bookmarks that
// the request names. It refuses if there are others. Repeating the request completes an interrupted
// one.
var OpRollback = Op[zfs.Rollback, None]{
	name:    "rollback",
	acts:    []string{zfs.OpRollback, zfs.OpDestroy},
	plain:   withoutAnswer(Plain.Rollback),
	request: manyNames,
}

// OpInheritKey makes an encryption root inherit the key of its parent. It refuses unless the
// properties prove that both keys are the same, because nothing could open the dataset otherwise.
var OpInheritKey = Op[string, None]{name: "inherit-key", full: changes((*Local).InheritKey), ability: toGiveBack, acts: []string{zfs.OpChangeKey}}

// OpInheritKeyAsserted is like OpInheritKey, for a named parent and for keys of which ZFS does not
// show whether they are the same.
var OpInheritKeyAsserted = Op[zfs.AssertedKey, None]{
	name:    "inherit-key-asserted",
	acts:    []string{zfs.OpChangeKey},
	full:    changes((*Local).InheritKeyAsserted),
	ability: toGiveBack,
}

// OpMakeEncryptionRoot makes a dataset with an inherited key an encryption root that has the same
// key. It ignores encryption roots. OpInheritKey undoes it while both keys are the same.
var OpMakeEncryptionRoot = Op[string, None]{
	name:    "make-encryption-root",
	acts:    []string{zfs.OpChangeKey},
	full:    changes((*Local).MakeEncryptionRoot),
	ability: toGiveBack,
}

// OpInUse returns conflicts by path: the contents of directories that a mount would hide, and the
// users of devices.
var OpInUse = Op[[]string, map[string]string]{
	name:    "in-use",
	full:    withoutProgress((*Local).InUse),
	ability: toGiveBack,
	request: manyNames,
	answer:  func(paths []string, request int) int { return 4*request + len(paths)*budget.CommaCost },
	check: func(paths []string, found *map[string]string) error {
		for path := range *found {
			if !slices.Contains(paths, path) {
				return fmt.Errorf("got unrequested %q", path)
			}
		}
		return nil
	},
}

// OpDamage returns the permanent errors of a dataset and its descendants.
var OpDamage = Op[string, zfs.Damage]{
	name:   "damage",
	plain:  Plain.Damage,
	answer: func(string, int) int { return 2 * MaxAnswer },
	check:  checkDamage,
}

// OpScrub starts a scrub of the dataset's pool and returns immediately.
var OpScrub = Op[string, None]{name: "scrub", full: changes((*Local).Scrub), ability: "heal the pool", acts: []string{zfs.OpScrub}}

const toUseDisks = "import or export pools"

// OpFindPools lists imported pools and, if the query has directories, pools that could be imported.
var OpFindPools = Op[zfs.PoolQuery, zfs.FoundPools]{
	name:    "find-pools",
	full:    withoutProgress((*Local).FindPools),
	ability: toUseDisks,
	answer:  func(zfs.PoolQuery, int) int { return 2 * zfs.MaxPools * 1 << 10 },
	check: func(_ zfs.PoolQuery, f *zfs.FoundPools) error {
		if len(f.Imported) > zfs.MaxPools || len(f.Attached) > zfs.MaxPools {
			return fmt.Errorf("got %d pools", len(f.Imported)+len(f.Attached))
		}
		return plausible(f, shown)
	},
}

// OpImportPool imports a pool without mounting its datasets. ZFS refuses pools that another host may
// use.
var OpImportPool = Op[zfs.PoolImport, None]{name: "import-pool", full: changes((*Local).ImportPool), ability: toUseDisks, acts: []string{zfs.OpImport}}

// OpExportPool exports a pool that OpImportPool has imported, by its GUID. It ignores a pool that is
// not imported, and refuses pools that others imported.
var OpExportPool = Op[zfs.PoolExport, None]{name: "export-pool", full: changes((*Local).ExportPool), ability: toUseDisks, acts: []string{zfs.OpExport}}

// OpSync writes out the open transaction group of the dataset's pool. Before that, properties such as
// "written" lack the last seconds.
var OpSync = Op[string, None]{name: "sync", plain: withoutAnswer(Plain.Sync)}

// OpRevert rolls a dataset back to a snapshot ("pool/a@x"). All newer snapshots must have
// zfs.HealPrefix; it destroys them.
var OpRevert = Op[string, None]{name: "revert", plain: withoutAnswer(Plain.Revert), acts: []string{zfs.OpRollback, zfs.OpDestroy}}

// OpCreateDrillClone creates a clone that is not mounted, and returns its name.
var OpCreateDrillClone = Op[zfs.DrillClone, string]{
	name:  "create-drill-clone",
	acts:  []string{zfs.OpClone, zfs.OpMount},
	plain: Plain.CreateDrillClone,
	check: checkDrillClone,
}

// OpDestroyDrillClones destroys drill clones and nothing else.
var OpDestroyDrillClones = Op[zfs.DrillClones, None]{
	name:    "destroy-drill-clones",
	acts:    []string{zfs.OpDestroy},
	plain:   withoutAnswer(Plain.DestroyDrillClones),
	request: manyNames,
}

// OpRunInDrillClone runs a command in a drill clone as root. A failed command is part of the result,
// not an error.
var OpRunInDrillClone = Op[zfs.DrillCommand, zfs.DrillResult]{
	name:    "run-in-drill-clone",
	acts:    []string{zfs.OpMount},
	full:    withoutProgress((*Local).RunInDrillClone),
	ability: "run a drill command",
	answer:  func(zfs.DrillCommand, int) int { return 4 * zfs.MaxDrillOutput },
	check:   checkDrillResult,
	long:    true,
}

// OpRenameDiverged renames diverged copies with their descendants, to make room for new copies. It
// ignores copies that are renamed already. An empty list asks whether this is permitted.
var OpRenameDiverged = Op[[]zfs.DivergedCopy, None]{
	name:  "rename-diverged",
	acts:  []string{zfs.OpRename},
	plain: withoutAnswer(Plain.RenameDiverged),
}

// OpRenameCopies renames copies with their descendants, because their source datasets were renamed. If
// a copy must not be renamed (zfs.RenamedCopy.RefusalReason), or the name is taken, the error has
// class fault.Refused. It ignores copies that are renamed already. An empty list asks whether this is
// permitted.
var OpRenameCopies = Op[[]zfs.RenamedCopy, None]{
	name:    "rename-copies",
	acts:    []string{zfs.OpRename},
	full:    changes((*Local).RenameCopies),
	ability: "rename copies of renamed datasets",
	request: manyNames,
}

// OpDestroyOrphans destroys copies whose source was deleted. If a copy must be kept
// (zfs.Orphan.RefusalReason), the error has class fault.Refused. It ignores missing copies. An empty
// list asks whether this is permitted.
var OpDestroyOrphans = Op[[]zfs.Orphan, None]{
	name:    "destroy-orphans",
	acts:    []string{zfs.OpDestroy, zfs.OpSet},
	full:    changes((*Local).DestroyOrphans),
	ability: "destroy copies of deleted datasets",
	request: manyNames,
}
