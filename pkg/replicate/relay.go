package replicate

import (
	"slices"
	"strings"
	"time"

	"zxfer/pkg/fault"
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

// relayFaults adds errors in a job whose source is a copy.
func (j *Job) relayFaults(f *faults) {
	from := j.Snapshots.ReceivedFrom
	if from == "" {
		if j.Snapshots.Late != 0 {
			f.addf("snapshots.late", "snapshots.late has no effect without snapshots.received_from")
		}
		return
	}
	job, target, ok := strings.Cut(from, ":")
	if !ok || !hostName.MatchString(job) || !hostName.MatchString(target) {
		f.add("snapshots.received_from", fault.Usagef("write the names of the job that sends the source, and of its target: received_from = \"JOB:TARGET\"", "snapshots.received_from %q is not JOB:TARGET", from))
	}
	for _, k := range []struct {
		key string
		set bool
		why string
	}{
		{"snapshots.take", j.Snapshots.Take != "", "a snapshot of a copy blocks its next receive"},
		{"retention", j.Retention != nil, "the job that sends the copy prunes it"},
		{"freeze", len(j.Freeze) > 0, "the job takes no snapshots"},
	} {
		if k.set {
			f.add(k.key, fault.Usagef("omit "+k.key, "%s cannot be combined with snapshots.received_from: %s", k.key, k.why))
		}
	}
	if len(j.Targets) == 0 {
		f.addf("snapshots.received_from", "snapshots.received_from has no effect without a [[job.target]]")
	}
}

// sentOnFaults adds errors in the names of the jobs that send a copy on.
func (t *Target) sentOnFaults(f *faults) {
	for _, job := range t.SentOnBy {
		if !hostName.MatchString(job) {
			f.addf("sent_on_by", "sent_on_by: %q is not the name of a job", job)
		}
	}
}
