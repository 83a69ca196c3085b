package jobfile

import (
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// relayFaults adds errors in a job whose source is a copy.
func relayFaults(j *replicate.Job, f *faults) {
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
func sentOnFaults(t *replicate.Target, f *faults) {
	for _, job := range t.SentOnBy {
		if !hostName.MatchString(job) {
			f.addf("sent_on_by", "sent_on_by: %q is not the name of a job", job)
		}
	}
}
