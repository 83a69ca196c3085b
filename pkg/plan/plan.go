// Package plan decides how a dataset gets from one host to another: from a
// request and the states of both sides to the steps of the transfer, or to
// conflicts that name what stands in the way on both sides.
//
// It is pure: it runs nothing, and the same input gives the same plan.
package plan

import (
	"iter"
	"slices"
	"time"

	"zxfer/pkg/zfs"
)

// Request is what the user asked for.
type Request struct {
	Source    string // dataset, without snapshot
	Snapshot  string // snapshot to arrive at, without "@"; "" = the newest of each dataset
	Target    string // as typed: "pool", "pool/" or "pool/x/" (path below the source's pool is appended), else the exact dataset
	Recursive bool

	// LatestOnly carries no intermediate snapshots: one full or one -i.
	LatestOnly bool
	// IncludeSnapshots and ExcludeSnapshots are patterns (see Pattern) of
	// snapshots' names; the snapshot asked for is always carried.
	IncludeSnapshots []string
	ExcludeSnapshots []string
	OnlySnapshots    []string // narrows IncludeSnapshots

	// Newest is how many snapshots are carried at most of each dataset, the newest of
	// those that are chosen; 0 = all. Since leaves out what was taken before, by the
	// clock of the source; zero leaves out nothing. The one that a transfer arrives at
	// is always carried.
	Newest int
	Since  time.Time
	// First is what the first transfer of a dataset brings, of what is chosen so.
	First First

	Decrypt  bool // send encrypted datasets decrypted; never without this
	Rollback bool // let the target lose what is newer than the common version

	// Rotate has a copy that diverged set aside, and begun anew in full: its name gets
	// this ending (zfs.SetAsideEnding). "" = it is refused.
	Rotate string
	// Copies are the target's datasets that are known to be copies: only these are set
	// aside where they have nothing in common with the source. nil: whatever is there.
	Copies map[string]bool
	// Spent are those that were set aside so often, and are kept, that it is not done again.
	Spent map[string]bool
	// Ours are the target's datasets that may go along with one above that is set aside;
	// one with others below it stays refused. nil: whatever is below.
	Ours map[string]bool
	// Again are those that were set aside before, and did not arrive since: that they are
	// begun is no news to First.
	Again map[string]bool

	// Unchosen are datasets of the source that are left out, and Idle those that need
	// nothing: the source has them, whatever its listing says.
	Unchosen map[string]*zfs.Dataset
	Idle     map[string]bool

	CarryProperties bool              // -p: what is harmless too, of the properties that are set on the source
	CarryNamed      []string          // --carry: and these; see zfs.Carry
	Set             map[string]string // -o
	Exclude         []string          // -x

	// Restore brings a copy back: what kept it from being changed and mounted is given
	// back in the end (see Giving).
	Restore bool

	AnyKey   bool // pass over KeyChanged
	Bookmark bool // what arrived is to be bookmarked on the source

	NoResume bool // discard resumable state on the target instead of using it

	names   *names               // of IncludeSnapshots and ExcludeSnapshots
	created map[string]time.Time // State.SourceCreated
}

// Carries returns which property values the source may choose.
func (r *Request) Carries() zfs.Carry {
	return zfs.Carry{All: r.CarryProperties || len(r.CarryNamed) > 0, Named: r.CarryNamed}
}

// First is how the history of a dataset begins that the target does not have.
type First string

// The ways to begin; "" is FirstAll.
const (
	FirstAll    First = "all"    // with the oldest snapshot that is carried
	FirstNewest First = "newest" // with the one that is arrived at
	FirstFail   First = "fail"   // not at all: a copy that is gone is not begun anew unasked
)

// FirstWays are all of them.
func FirstWays() []string { return []string{string(FirstAll), string(FirstNewest), string(FirstFail)} }

// State is what the survey found.
type State struct {
	Source     zfs.Listing
	Target     zfs.Listing
	SourceHost string // for messages
	TargetHost string
	// SameHost tells that both listings are of one host.
	SameHost bool
	// IVSets are the ivsetguid values of encrypted bases where known, by
	// GUID of the version: nil until the job has fetched them (see NeedIVSets).
	SourceIVSets map[uint64]string
	TargetIVSets map[uint64]string
	// SourceOrigins and TargetOrigins are GUIDs by full snapshot name of
	// clones' origins that lie outside the listings, as NeedOrigins asked;
	// names that do not exist are missing.
	SourceOrigins map[string]uint64
	TargetOrigins map[string]uint64
	// SourceCreated is when snapshots of the source were taken, by full name: where
	// Request.Since asks for it, of those that NeedCreated names.
	SourceCreated map[string]time.Time
	// TargetMounted are the filesystems at and below the target that are mounted: for
	// a restore, which may have to unmount them.
	TargetMounted []string
	// TargetHolds and TargetClones are the tags of the holds on the snapshots
	// that NeedLosses names, and their clones, by full snapshot name.
	TargetHolds  map[string][]string
	TargetClones map[string][]string
	// Aside are copies that are to be set aside, by name; Target is as it will be then.
	Aside map[string]*DivergedRename
	// Below is what is at and below the copies that NeedBelow names.
	Below []*zfs.Dataset
	// Others are what keeps copies from being set aside: what is below them and not ours.
	Others map[string][]string
}

// Plan is the ordered steps of a job, or the conflicts that forbid it.
type Plan struct {
	Datasets  []*Dataset `json:"datasets"`  // in an order that respects Needs
	Conflicts Conflicts  `json:"conflicts"` // any: nothing may be done
	Notes     []string   `json:"notes"`     // what was chosen, dropped or skipped, and why

	astray map[string]string // copies that Rotate may set aside, with why
}

// Dataset is what will be done for one dataset.
type Dataset struct {
	Source string   `json:"source"`
	Target string   `json:"target"`
	Type   zfs.Type `json:"type"`
	// Needs are the Sources of the datasets of this plan that must arrive
	// first: the parent, and a clone's origin.
	Needs         []string `json:"needs,omitempty"`
	CreateParents bool     `json:"create_parents,omitempty"` // ancestors of Target are missing
	// Aside is what becomes, first of all, of the copy that is there; nil = it stays.
	Aside   *DivergedRename `json:"set_aside,omitempty"`
	Discard string          `json:"discard,omitempty"` // why resumable state on Target will be dropped; "" = it will not
	Steps   []Step          `json:"steps"`             // empty: up to date
	// Arrive is the version that the target must hold in the end.
	Arrive zfs.Version `json:"arrive"`
	// Encrypted tells that the streams are raw streams of encrypted data.
	Encrypted bool `json:"encrypted,omitempty"`
	// Loses are the target's snapshots and changes that Rollback destroys.
	Loses []string `json:"loses,omitempty"`
	// Clears are those of Loses that are destroyed before the first stream: one of
	// the same name arrives, and ZFS rolls back only behind a whole stream.
	Clears []string `json:"clears,omitempty"`

	// Moves are the holds of zxfer's jobs on snapshots that the target loses: each is placed
	// on the snapshot that it goes back to, and then removed from the others.
	Moves []MovedHold `json:"moves_holds,omitempty"`

	// Restore is what a restore does besides moving streams; nil for no restore.
	Restore *RestoredOwner `json:"restore,omitempty"`

	// Joins is the encryption root of the target that it will take its key from, as far
	// as is known before; see zfs.ProvedKey.
	Joins string `json:"joins,omitempty"`
	// Parts are copies that take their key from it, which changes: they become
	// encryption roots of the key that they have, before the first stream.
	Parts []string `json:"parts,omitempty"`

	// NewKey says that another key opens the target afterwards.
	NewKey string `json:"new_key,omitempty"`

	chain *chain        // whose IV sets tell whether the first step is possible
	newer []zfs.Version // the snapshots of Loses
	kept  zfs.Version   // the snapshot of the target that it goes back to then
	stuck []string      // those of Parts that no stream brings the new key
	// takes is the encryption root that it takes its key from on the source's word: ZFS
	// shows nothing of such a key.
	takes string
	// inherit are copies that take such a key from it.
	inherit []string
	// keepsKey is, of a copy that takes such a key from above, the source's root: no
	// stream may bring another key than the copy has.
	keepsKey string
}

// MovedHold is a hold that is placed on one snapshot and removed from others, by full names.
type MovedHold struct {
	Tag  string   `json:"tag"`
	To   string   `json:"to"`
	From []string `json:"from"`
}

// RollsBack reports whether it goes back to a snapshot that it has, without a stream.
func (d *Dataset) RollsBack() bool { return d.Restore != nil && d.Restore.Rollback != nil }

// Kind says what sort of stream a step is.
type Kind string

// The kinds of steps.
const (
	Full        Kind = "full"
	Incremental Kind = "incremental"
	Clone       Kind = "clone"  // full stream of a clone, as an increment from its origin
	Resume      Kind = "resume" // rest of an interrupted stream
)

// Step is one stream.
type Step struct {
	Kind    Kind            `json:"kind"`
	Send    zfs.SendSpec    `json:"send"`
	Receive zfs.ReceiveSpec `json:"receive"`
	Why     string          `json:"why"`             // why this step, in one clause
	Done    uint64          `json:"done,omitempty"`  // bytes that arrived before (Resume)
	Bytes   uint64          `json:"bytes,omitempty"` // estimate, filled in by the job; 0 = unknown
	// BaseGUID is the GUID of the base, 0 for a full stream.
	BaseGUID uint64 `json:"base_guid,string,omitempty"`
	// ToGUID is the GUID the target must show afterwards.
	ToGUID uint64 `json:"to_guid,string,omitempty"`
}

// Streams are the steps of all datasets, in their order.
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

// Bytes is the estimate of all streams together, as far as it is known.
func (p *Plan) Bytes() (sum uint64) {
	for _, st := range p.Streams() {
		sum += st.Bytes
	}
	return sum
}

// Encrypted tells whether any dataset is sent raw.
func (p *Plan) Encrypted() bool {
	return slices.ContainsFunc(p.Datasets, func(d *Dataset) bool { return d.Encrypted })
}

// RollsBack reports whether a dataset of the plan goes back to a snapshot that it has.
func (p *Plan) RollsBack() bool { return slices.ContainsFunc(p.Datasets, (*Dataset).RollsBack) }

// Steps returns the number of streams of the plan.
func (p *Plan) Steps() int {
	n := 0
	for _, d := range p.Datasets {
		n += len(d.Steps)
	}
	return n
}
