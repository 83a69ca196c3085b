package jobfile

import (
	"errors"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// From returns the job in the direction in which the copy on a target is the source; "" = as in the job file.
//
// The job's own source is then the target replicate.FormerSource. Each place keeps its retention and its address. Keys that can
// destroy data are missing: mirror, on_divergence, on_rename. So are sent_on_by of the new source, and the property
// by which the job and that target select datasets, which copies may lack.
func From(j *replicate.Job, place string) (*replicate.Job, error) {
	if place == "" {
		return j, nil
	}
	t := j.Target(place)
	if t == nil {
		return nil, fault.Refusef("add the target to the job, with its former address", "job %q: its copy on target %q is the source, but the job has no such target", j.Name, place)
	}
	source, err := endpoint.Parse(j.Source)
	if err != nil {
		return nil, err
	}
	to, err := endpoint.Parse(t.To)
	switch {
	case err != nil:
		return nil, err
	case !strings.Contains(source.Name, "/"):
		return nil, fault.Refusef("replicate a dataset below it instead", "job %q: its source is the root dataset of a pool, which cannot receive a copy", j.Name)
	case j.Snapshots.ReceivedFrom != "":
		return nil, fault.Refusef("if nothing sends to the source any more, replace snapshots.received_from with snapshots.take",
			"job %q: its source cannot become a copy, because %s sends to it, too", j.Name, j.Snapshots.ReceivedFrom)
	case j.Target(replicate.FormerSource) != nil:
		return nil, fault.Refusef("rename the target, then run: zxfer replicate holds --gc", "job %q: no target can be named %q while the roles are changed", j.Name, replicate.FormerSource)
	}
	to.Name = t.CopyOf(source.Name, source.Name)
	r := *j
	r.Source, r.Retention, r.Property = to.String(), t.Retention, ""
	r.Transfer = *j.TransferTo(t)
	r.Transfer.Decrypt = false
	switch r.Transfer.Dial {
	case "source":
		r.Transfer.Dial = "target"
	case "target":
		r.Transfer.Dial = "source"
	}
	back := r.Transfer
	back.RSH, back.NoBootstrap = j.Transfer.RSH, j.Transfer.NoBootstrap // they reach the host
	former := replicate.Target{Name: replicate.FormerSource, PairName: place, To: source.String(), Selection: t.Selection, Retention: j.Retention, Transfer: &back,
		Properties: replicate.Properties{Carry: t.Properties.Carry, Exclude: t.Properties.Exclude},
		Snapshots:  replicate.TargetSnapshots{Only: t.Snapshots.Only, SnapshotLimits: j.SnapshotLimitsOf(t)}}
	former.Property = ""
	r.Targets = []replicate.Target{former}
	for i := range j.Targets {
		o := j.Targets[i]
		if o.Name == place {
			continue
		}
		at, err := endpoint.Parse(o.To)
		if err != nil {
			return nil, err
		}
		at.Name = o.CopyOf(source.Name, source.Name) // it may depend on the name of the source
		transfer := *j.TransferTo(&o)
		o.To, o.Transfer, o.Mirror, o.OnDivergence, o.OnRename = at.String(), &transfer, nil, "", ""
		r.Targets = append(r.Targets, o)
	}
	var errs []error
	for _, err := range jobFaults(&r) {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, fault.Refusef("change the job, so that each place can be the source", "job %q cannot run from target %q: %w", j.Name, place, errors.Join(errs...))
	}
	return &r, nil
}
