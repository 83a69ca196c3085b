// Package plan decides how datasets get from a source to a target. It is pure: it runs nothing,
// and the same input gives the same plan. Its nouns:
//
//   - Request: the options that the user chose.
//   - State: the survey of both hosts, with a listing of each.
//   - Plan: the datasets to transfer in order, or conflicts.
//   - Dataset: the plan for one dataset; its Steps send one stream each.
//   - conflict: a finding that prevents the transfer and names both sides.
//   - chain: the streams that made a copy, all raw or all plain.
//   - base: the incremental source of a stream, common to both sides.
//   - final snapshot: the snapshot that the target has after the transfer.
//   - copy: a target dataset received from the source.
//   - restore: a transfer from a copy back to its original.
//   - Pair: two datasets that Compare matches by snapshot GUIDs.
//
// It does not query hosts, send streams or verify results; package send does.
package plan

import (
	"iter"
	"slices"
	"time"

	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// Request holds the options that the user chose for a transfer.
type Request struct {
	Source    string // dataset, without snapshot
	Snapshot  string // final snapshot, without "@"; "" = the most recent of each dataset
	Target    string // as typed: "pool", "pool/" or "pool/x/" (the path below the source's pool is appended), otherwise the exact dataset
	Recursive bool

	// LatestOnly omits intermediate snapshots: one full send or one -i.
	LatestOnly bool
	// IncludeSnapshots and ExcludeSnapshots are patterns (see Pattern) for snapshot names. The
	// final snapshot is always sent.
	IncludeSnapshots []string
	ExcludeSnapshots []string
	OnlySnapshots    []string // further limits IncludeSnapshots

	// Newest is the maximum number of selected snapshots to send per dataset, the most recent
	// first; 0 = all. Since excludes snapshots taken earlier, by the source's clock; zero
	// excludes none. The final snapshot is always sent.
	Newest int
	Since  time.Time
	// First chooses the history to send for a dataset that is new on the target.
	First First

	Decrypt  bool // send encrypted datasets decrypted; never without this option
	Rollback bool // roll the target back to the common snapshot

	// Rotate is the suffix (zfs.SetAsideEnding) for renaming a diverged copy before a new full
	// send. "" = refuse diverged copies.
	Rotate string
	// Copies are the target datasets known to be copies. A dataset that has nothing in common
	// with the source is set aside only if it is listed here. nil: any dataset.
	Copies map[string]bool
	// RenameLimited are copies with too many kept former copies; they are not set aside again.
	RenameLimited map[string]bool
	// Owned are target datasets that may be renamed together with an ancestor. A copy with
	// other descendants is refused. nil: all may.
	Owned map[string]bool
	// RenamedBefore are copies set aside earlier whose replacement has not arrived yet. First
	// does not apply to them.
	RenamedBefore map[string]bool

	// ExcludedDatasets and UpToDate are source datasets that exist but are missing from the
	// listing: excluded ones, and ones that need no transfer.
	ExcludedDatasets map[string]*zfs.Dataset
	UpToDate         map[string]bool

	CarryProperties bool              // -p: carry harmless properties set on the source
	CarryNamed      []string          // --carry: carry these too; see zfs.Carry
	Set             map[string]string // -o
	Exclude         []string          // -x

	// Restore copies a backup back to its original. At the end, zxfer undoes the precautions
	// that kept the dataset read-only and unmounted (see RestoreActions).
	Restore bool

	AllowKeyChange bool // skip KeyChanged
	Bookmark       bool // the job will bookmark the final snapshot on the source

	NoResume bool // discard partially received state on the target

	patterns *snapshotPatterns    // parsed by Selects
	created  map[string]time.Time // State.SourceCreated
}

// Carries returns the rule for the property values that the source may choose.
func (r *Request) Carries() zfs.Carry {
	return zfs.Carry{All: r.CarryProperties || len(r.CarryNamed) > 0, Named: r.CarryNamed}
}

// First is the history to send for a dataset that is new on the target.
type First string

// Values of First; "" means FirstAll.
const (
	FirstAll    First = "all"    // from the oldest selected snapshot
	FirstNewest First = "newest" // only the final snapshot
	FirstFail   First = "fail"   // none: do not recreate a missing copy unasked
)

// FirstValues returns all values of First.
func FirstValues() []string {
	return []string{string(FirstAll), string(FirstNewest), string(FirstFail)}
}

// State is the result of the survey of both hosts.
type State struct {
	Source     zfs.Listing
	Target     zfs.Listing
	SourceHost string // for messages
	// SourceAt and TargetAt are the hosts for commands of hints.
	SourceAt, TargetAt remedy.Host
	TargetHost         string
	// SameHost reports whether both listings are of one kernel: of one host, perhaps under two
	// names, or of two containers.
	SameHost bool
	// SourceIVSets and TargetIVSets map the GUID of an encrypted incremental source to its
	// ivsetguid. They are nil until the job has fetched them (see NeedIVSets).
	SourceIVSets map[uint64]string
	TargetIVSets map[uint64]string
	// SourceOrigins and TargetOrigins map full snapshot names to GUIDs, for origins of clones
	// outside the listings (see NeedOrigins). Missing snapshots are omitted.
	SourceOrigins map[string]uint64
	TargetOrigins map[string]uint64
	// SourceCreated maps full names of source snapshots to creation times, as NeedCreated
	// requests.
	SourceCreated map[string]time.Time
	// TargetMounted are the mounted filesystems at and below the target, for a restore that may
	// have to unmount them.
	TargetMounted []string
	// TargetHolds and TargetClones map full names of the snapshots that NeedLosses returns to
	// their hold tags and clones.
	TargetHolds  map[string][]string
	TargetClones map[string][]string
	// Renames maps copies to their pending renames. Target is the listing after them.
	Renames map[string]*DivergedRename
	// Descendants lists the copies that NeedDescendants returns, with their descendants.
	Descendants []*zfs.Dataset
	// NotOwned maps a copy that cannot be set aside to its descendants that are not in
	// Request.Owned.
	NotOwned map[string][]string
}

// Plan is the ordered list of steps of a job, or the conflicts that prevent it.
type Plan struct {
	Datasets  []*Dataset `json:"datasets"`  // ordered: Needs come first
	Conflicts Conflicts  `json:"conflicts"` // if any, nothing may be changed
	Notes     []string   `json:"notes"`     // choices and skipped items, with reasons

	diverged map[string]string // copies that Rotate may set aside, with the reason
}

// Dataset is the plan for one dataset.
type Dataset struct {
	Source string   `json:"source"`
	Target string   `json:"target"`
	Type   zfs.Type `json:"type"`
	// Needs are the Sources of planned datasets that must arrive first: the parent, and a
	// clone's origin.
	Needs         []string `json:"needs,omitempty"`
	CreateParents bool     `json:"create_parents,omitempty"` // ancestors of Target are missing
	// Rename renames the existing copy before anything else; nil = keep it.
	Rename  *DivergedRename `json:"set_aside,omitempty"`
	Discard string          `json:"discard,omitempty"` // why partially received state on Target will be discarded; "" = it will not
	Steps   []Step          `json:"steps"`             // empty: up to date
	// SetAfter are properties to set after the last stream, because zfs receive cannot set them.
	SetAfter map[string]string `json:"set_after,omitempty"`
	// Final is the version that the target must have at the end.
	Final zfs.Version `json:"arrive"`
	// Encrypted reports whether the streams are raw streams of encrypted data.
	Encrypted bool `json:"encrypted,omitempty"`
	// Loses are the target's snapshots and changes that Rollback destroys.
	Loses []string `json:"loses,omitempty"`
	// DestroyedFirst are the snapshots in Loses that are destroyed before the first stream, because a
	// snapshot of the same name arrives. ZFS rolls back only after a whole stream.
	DestroyedFirst []string `json:"clears,omitempty"`

	// MovedHolds are holds of zxfer's jobs on snapshots in Loses. Each hold is placed on the
	// snapshot kept by the rollback and then released from the others.
	MovedHolds []MovedHold `json:"moves_holds,omitempty"`

	// Restore holds the additional actions of a restore; nil for other jobs.
	Restore *RestoreActions `json:"restore,omitempty"`

	// Joins is the target's encryption root from which the dataset is expected to inherit its
	// key; see zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
	// NewRoots are copies that inherit their key from this dataset, whose key changes. Before the
	// first stream they become encryption roots with their present key.
	NewRoots []string `json:"parts,omitempty"`

	// NewKey explains that another key opens the target afterwards; "" if it does not.
	NewKey string `json:"new_key,omitempty"`

	// EndsDirection reports that the record of the source's own direction must be removed before the first
	// stream, because the source received from the target.
	EndsDirection bool `json:"-"`

	blocks         *BlockPair    // checked by CheckBlockSizes
	ivBase         *ivBase       // checked by CheckIVSets
	newer          []zfs.Version // the snapshots of Loses
	kept           zfs.Version   // the target snapshot that the rollback returns to
	mustBecomeRoot []string      // those of NewRoots to which no stream brings the new key
	// assertedRoot is the encryption root from which it inherits its key on the source's
	// assertion. ZFS shows nothing of such a key.
	assertedRoot string
	// keyDependents are copies that inherit such a key from this dataset.
	keyDependents []string
	// requiredKeyRoot is the source's encryption root, for a copy that inherits such a key. A
	// stream must not bring another key than the copy has.
	requiredKeyRoot string
}

// RestoreActions are the actions of a restore for one dataset in addition to its streams.
type RestoreActions struct {
	// Due reports whether the dataset is new or its restore was interrupted. The actions below
	// then apply after the last stream.
	Due bool `json:"due,omitempty"`
	// Set and Revert undo the precautions on the copy.
	Set    map[string]string `json:"set,omitempty"`
	Revert []string          `json:"revert,omitempty"`
	// Joins is the encryption root from which the dataset is expected to inherit its key; see
	// zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
	// Rollback rolls the dataset back to the wanted snapshot, which it already has; nil if
	// there is no rollback.
	Rollback *zfs.Rollback `json:"rollback,omitempty"`
	// AssertedRoot is the encryption root from which the dataset inherits its key on the
	// assertion of the copy's host. ZFS shows only keys that are passphrases.
	AssertedRoot string `json:"takes,omitempty"`
	// CopyAhead reports whether the copy has newer snapshots, which the original loses. The copy
	// has then diverged.
	CopyAhead bool `json:"copy_ahead,omitempty"`
	// Unmount are the filesystems at and below the dataset that must be unmounted first.
	Unmount []string `json:"unmount,omitempty"`
	// Mountpoint is the directory on which the dataset will be mounted; "" if nowhere, or
	// mounted already.
	Mountpoint string `json:"mountpoint,omitempty"`
}

// DivergedRename is the new name of a diverged copy that is set aside.
type DivergedRename struct {
	As   string `json:"as"`
	GUID uint64 `json:"guid,string"`
	Why  string `json:"why"`
}

// MovedHold is a hold placed on one snapshot and released from others, by full names.
type MovedHold struct {
	Tag  string   `json:"tag"`
	To   string   `json:"to"`
	From []string `json:"from"`
}

// arriving returns the names of the snapshots that the streams bring.
func (d *Dataset) arriving() map[string]bool {
	names := map[string]bool{}
	for _, st := range d.Steps {
		names[st.Send.To] = true
		for _, name := range st.Send.Through {
			names[name] = true
		}
	}
	return names
}

// RollsBack reports whether a restore rolls the dataset back to a snapshot it already has.
func (d *Dataset) RollsBack() bool { return d.Restore != nil && d.Restore.Rollback != nil }

// Kind is the kind of stream of a step.
type Kind string

const (
	Full        Kind = "full"
	Incremental Kind = "incremental"
	Clone       Kind = "clone"  // full send of a clone, incremental from its origin
	Resume      Kind = "resume" // rest of an interrupted stream
)

// Step sends and receives one stream.
type Step struct {
	Kind    Kind            `json:"kind"`
	Send    zfs.SendSpec    `json:"send"`
	Receive zfs.ReceiveSpec `json:"receive"`
	Why     string          `json:"why"`             // reason for the step, in one clause
	Done    uint64          `json:"done,omitempty"`  // bytes received before (Resume)
	Bytes   uint64          `json:"bytes,omitempty"` // estimate, set by the job; 0 = unknown
	// BaseGUID is the GUID of the incremental source, 0 for a full send.
	BaseGUID uint64 `json:"base_guid,string,omitempty"`
	// ToGUID is the GUID that the target must have afterwards.
	ToGUID uint64 `json:"to_guid,string,omitempty"`
}

// Streams iterates over the steps of all datasets in order.
func (p *Plan) Streams() iter.Seq2[*Dataset, *Step] {
	return func(yield func(*Dataset, *Step) bool) {
		for _, d := range p.Datasets {
			for i := range d.Steps {
				if !yield(d, &d.Steps[i]) {
					return
				}
			}
		}
	}
}

// Bytes returns the sum of the known estimates.
func (p *Plan) Bytes() (sum uint64) {
	for _, st := range p.Streams() {
		sum += st.Bytes
	}
	return sum
}

// Encrypted reports whether any dataset is sent raw.
func (p *Plan) Encrypted() bool {
	return slices.ContainsFunc(p.Datasets, func(d *Dataset) bool { return d.Encrypted })
}

// RollsBack reports whether a restore rolls back any dataset.
func (p *Plan) RollsBack() bool { return slices.ContainsFunc(p.Datasets, (*Dataset).RollsBack) }

// Steps returns the number of streams of the plan.
func (p *Plan) Steps() int {
	n := 0
	for _, d := range p.Datasets {
		n += len(d.Steps)
	}
	return n
}
