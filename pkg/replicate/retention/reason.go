package retention

import "strings"

// Kind is a kind of Reason: its words for people, in which %s stands for Reason.Of.
type Kind string

// The kinds of reasons to keep a snapshot, and then those to keep a copy of a deleted dataset.
const (
	NoReason           Kind = ""
	KeptByRules        Kind = "%s" // the rules of the grid
	MostRecent         Kind = "newest"
	TooFast            Kind = "newer snapshots came too fast"
	IncrementalSource  Kind = "incremental source for %s" // the target
	NextIncremental    Kind = "incremental source of the next run"
	BookmarkSuffices   Kind = "bookmarked for an absent disk" // keeps the bookmark, but not the snapshot
	BeingSent          Kind = "being sent to %s"              // the target
	InterruptedReceive Kind = "an interrupted receive needs it"
	SourceLacks        Kind = "the source lacks these snapshots"
	SourceEmpty        Kind = "the source lists no snapshot"
	NewerThanCommon    Kind = "newer than the most recent common snapshot"
	NotSentOn          Kind = "job %s has not sent it on" // the job of sent_on_by

	DescendantKept     Kind = "%s, a descendant, is kept"
	ForeignSnapshot    Kind = "@%s does not belong to the job"
	ReceiveInterrupted Kind = "a receive into it was interrupted"
	ModifiedCopy       Kind = "it was modified since its most recent snapshot"
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
	why := strings.Replace(string(r.Kind), "%s", r.Of, 1)
	if r.Snapshot != "" {
		return "@" + r.Snapshot + " is kept: " + why
	}
	return why
}
