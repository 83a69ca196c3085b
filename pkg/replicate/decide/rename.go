package decide

import (
	"fmt"

	"zxfer/pkg/fault"
)

// RenameState is the state of a copy's name on a target.
type RenameState string

// States of a copy's name.
const (
	// CopyNamed: the name belongs to the name of the source dataset.
	CopyNamed RenameState = "named"
	// CopyOutdated: the source dataset was renamed, and the copy still has the name of before.
	CopyOutdated RenameState = "outdated"
)

// RenameEvent is an observation of a run about a copy's name.
type RenameEvent string

// Events of a copy's name.
const (
	// SourceRenamed: the source dataset has the GUID that an earlier run recorded for another name.
	SourceRenamed RenameEvent = "source renamed"
	// SourceRenamedBack: the source dataset again has the name to which the copy's name belongs.
	SourceRenamedBack RenameEvent = "renamed back"
	// CopyAtNewName: the copy has the new name already, because a run was killed after it renamed it, or
	// because the administrator renamed it.
	CopyAtNewName RenameEvent = "copy at new name"
	// CopyMissing: the target has no copy under either name.
	CopyMissing RenameEvent = "copy missing"
	// RenameProved: dataset and snapshots are the same, and nothing is in the way. The run renames the copy.
	RenameProved RenameEvent = "proved"
	// RenameUnwanted: on_rename is "refuse".
	RenameUnwanted RenameEvent = "unwanted"
	// RenameUnproved: the copy or the source lacks the common snapshot, or another dataset claims the copy.
	RenameUnproved RenameEvent = "unproved"
	// RenameNameTaken: the target has another dataset with the new name.
	RenameNameTaken RenameEvent = "name taken"
	// RenameParentMissing: the parent of the new name will be sent, but has not arrived.
	RenameParentMissing RenameEvent = "parent missing"
	// RenameOtherData: the copy has descendants that do not belong to the job.
	RenameOtherData RenameEvent = "other data"
	// RenameOtherKey: the copy inherits its key from a dataset that is not above the new name.
	RenameOtherKey RenameEvent = "other key"
)

// RenameFacts are the facts about an outdated name from which its event follows.
type RenameFacts struct {
	Copy, To string // the copy and its new name
	Follow   bool   // on_rename is "follow"

	CopyExists, NameExists bool
	CopyHasBase            bool // the common snapshot of earlier runs
	NameHasBase            bool // the dataset with the new name has it
	SourceHasBase          bool // as a snapshot or bookmark
	Claimed                bool // another source dataset may be the original of the copy
	ParentMissing          bool
	OtherData              string // a descendant of another owner, "" = none
	OtherKey               string // why the key does not fit, "" = it fits
}

// Event returns the event that follows from the facts.
func (f *RenameFacts) Event() RenameEvent {
	switch {
	case f.NameExists && f.NameHasBase && !f.CopyHasBase:
		return CopyAtNewName
	case !f.CopyExists:
		return CopyMissing
	case !f.Follow:
		return RenameUnwanted
	case !f.CopyHasBase || !f.SourceHasBase || f.Claimed:
		return RenameUnproved
	case f.ParentMissing:
		return RenameParentMissing
	case f.OtherData != "":
		return RenameOtherData
	case f.OtherKey != "":
		return RenameOtherKey
	case f.NameExists: // last: nothing else is in the way if that copy is renamed, too
		return RenameNameTaken
	}
	return RenameProved
}

// NextRename returns the state of a copy's name after an event. The event is refused if the copy must
// keep its former name. The facts only complete the message.
func NextRename(s RenameState, e RenameEvent, f *RenameFacts) (RenameState, error) {
	if s == CopyNamed {
		if e == SourceRenamed {
			return CopyOutdated, nil
		}
		return s, nil
	}
	refuse := func(hint, why string) (RenameState, error) {
		return s, fault.Refusef(hint, "%s is not renamed to %s: %s", f.Copy, f.To, why)
	}
	switch e {
	case SourceRenamedBack, CopyAtNewName, CopyMissing, RenameProved:
		return CopyNamed, nil
	case RenameUnwanted:
		return refuse(`to rename copies with their sources, write on_rename = "follow" into the target`, `on_rename is "refuse"`)
	case RenameUnproved:
		return refuse("compare both with zfs list -t snapshot -o name,guid", "it is not certain that it is the copy of the renamed dataset")
	case RenameNameTaken:
		return refuse("rename or destroy the dataset with the new name, if it is not needed", "the target has another dataset with that name")
	case RenameParentMissing:
		return refuse("run the job again: the parent was sent", "the copy of its new parent had not arrived when the run began")
	case RenameOtherData:
		return refuse("move it elsewhere first", fmt.Sprintf("%s below it does not belong to this job", f.OtherData))
	case RenameOtherKey:
		return refuse("make it an encryption root first: load its key, then zfs change-key", f.OtherKey)
	}
	return s, nil
}
