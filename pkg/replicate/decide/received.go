package decide

// ReceivedState is the state of a dataset that a relay sends on, according to the holds by which the job
// that sends the dataset here confirms snapshots.
type ReceivedState string

// The states.
const (
	ReceivedNew         ReceivedState = "received"
	ReceivedNothing     ReceivedState = "nothing new"
	ReceivedUnconfirmed ReceivedState = "not confirmed"
)

// ReceivedEvent is what a run observes of a dataset.
type ReceivedEvent string

// The events. If several apply, the first one counts. A job with skip_unchanged confirms only snapshots of
// datasets that changed. A dataset without new snapshots is therefore up to date if another dataset of
// the tree has one.
const (
	SnapshotConfirmed   ReceivedEvent = "snapshot confirmed"
	SnapshotUnconfirmed ReceivedEvent = "only unconfirmed snapshots"
	OtherConfirmed      ReceivedEvent = "snapshot of another dataset confirmed"
	NoSnapshot          ReceivedEvent = "no new snapshot"
)

// ReceivedAfter returns the state after a run that observed an event.
func ReceivedAfter(e ReceivedEvent) ReceivedState {
	switch e {
	case SnapshotConfirmed, OtherConfirmed:
		return ReceivedNew
	case SnapshotUnconfirmed:
		return ReceivedUnconfirmed
	}
	return ReceivedNothing
}
