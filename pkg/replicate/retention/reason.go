package retention

// Kind is a kind of Reason.
type Kind int

// The kinds of reasons. Of is what Reason.Of names.
const (
	NoReason           Kind = iota
	KeptByRules             // Of: the rules of the grid
	MostRecent              // the most recent snapshot of the dataset
	TooFast                 // newer snapshots came too fast
	IncrementalSource       // Of: the target
	NextIncremental         // the incremental source of the next run, on a target
	BookmarkSuffices        // an absent disk needs only the bookmark
	BeingSent               // Of: the target
	InterruptedReceive      // an interrupted receive still needs the snapshot
	SourceLacks             // the source lacks all snapshots of the copy
	SourceEmpty             // the source lists no snapshot
	NewerThanCommon         // the snapshot is newer than the most recent common one
	NotSentOn               // Of: the job of sent_on_by
	DescendantKept          // Of: the dataset below the copy
	ForeignSnapshot         // Of: the snapshot of the copy
	ReceiveInterrupted      // a receive into the copy was interrupted
	ModifiedCopy            // the copy was modified since its most recent snapshot
)

// Reason is why a snapshot, or a copy of a deleted dataset, is kept. The zero Reason is none.
type Reason struct {
	Kind Kind
	Of   string
	// Snapshot is the snapshot because of which a whole copy is kept, "" = the reason concerns a snapshot itself.
	Snapshot string
}

// String returns the reason for people.
func (r Reason) String() string {
	if r.Snapshot != "" {
		return "@" + r.Snapshot + " is kept: " + Reason{Kind: r.Kind, Of: r.Of}.String()
	}
	switch r.Kind {
	case KeptByRules:
		return r.Of
	case MostRecent:
		return "newest"
	case TooFast:
		return "newer snapshots came too fast"
	case IncrementalSource:
		return "incremental source for " + r.Of
	case NextIncremental:
		return "incremental source of the next run"
	case BookmarkSuffices:
		return "bookmarked for an absent disk"
	case BeingSent:
		return "being sent to " + r.Of
	case InterruptedReceive:
		return "an interrupted receive needs it"
	case SourceLacks:
		return "the source lacks these snapshots"
	case SourceEmpty:
		return "the source lists no snapshot"
	case NewerThanCommon:
		return "newer than the most recent common snapshot"
	case NotSentOn:
		return "job " + r.Of + " has not sent it on"
	case DescendantKept:
		return r.Of + ", a descendant, is kept"
	case ForeignSnapshot:
		return "@" + r.Of + " does not belong to the job"
	case ReceiveInterrupted:
		return "a receive into it was interrupted"
	case ModifiedCopy:
		return "it was modified since its most recent snapshot"
	}
	return ""
}
