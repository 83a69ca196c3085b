package replicate

import (
	"slices"
	"time"

	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// A relay is a job whose source is a copy that a job of another host sends there. That job holds the
// most recent snapshot that it has verified by GUID, with its tag. The relay sends only snapshots up
// to that one: later ones may be foreign, and be rolled back.

// HeldByOthers reports whether a hold belongs to a job of another host that the file names: the job that
// sends the source of a relay, or a job that sends a copy on.
func (f *File) HeldByOthers(tag string) bool {
	job, _ := JobOfTag(tag)
	return slices.ContainsFunc(f.Jobs, func(j Job) bool {
		return j.UpstreamTag() == tag || slices.ContainsFunc(j.Targets, func(t Target) bool { return slices.Contains(t.SentOnBy, job) })
	})
}

// UpstreamTag returns the tag of the holds of the job that sends the source, "" = the job is no relay.
func (j *Job) UpstreamTag() string {
	if j.Snapshots.ReceivedFrom == "" {
		return ""
	}
	return zfs.TagPrefix + j.Snapshots.ReceivedFrom
}

// Received records what the upstream job of a relay has confirmed for a dataset.
type Received struct {
	State decide.ReceivedState `json:"state"` // in the last run
	// Since is the start of the last run in state decide.ReceivedNew, by this host's clock. The dates
	// of snapshots come from another host.
	Since time.Time `json:"since"`
	// Latest is the createtxg of the most recent confirmed snapshot.
	Latest uint64 `json:"createtxg"`
	// Unconfirmed counts the later snapshots.
	Unconfirmed int `json:"unconfirmed,omitempty"`
	// Promoted means that a fail over made the dataset the source. Latest is its most recent snapshot
	// then.
	Promoted bool `json:"promoted,omitempty"`
}
