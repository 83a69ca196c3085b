package replicate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/zfs"
)

// Freeze is an application that stands still while snapshots of its datasets are taken,
// on the host that has them.
type Freeze struct {
	freeze.Spec
	// Datasets are patterns of those that are its own (see Selects); empty means all.
	Datasets []string `toml:"datasets,omitempty"`
	// Timeout is how long it may stand still at most; 0 = 30 seconds.
	Timeout Duration `toml:"timeout,omitempty"`
	// OnFailure is "stop", which takes no snapshot where it cannot be held still, or
	// "continue", which takes them all the same; "" = stop.
	OnFailure string `toml:"on_failure,omitempty"`
}

// spec is it as the host is asked.
func (z *Freeze) spec() freeze.Spec {
	s := z.Spec
	s.Within = cmp.Or(time.Duration(z.Timeout), freeze.DefaultWithin)
	return s
}

// covers tells whether a dataset at or below the job's source is the application's.
func (z *Freeze) covers(source, dataset string) bool {
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	return len(z.Datasets) == 0 || covered(z.Datasets, below)
}

// UnmatchedFreeze is a freeze that not all of what it names is there for: what it froze would be
// no application, or half of one.
type UnmatchedFreeze struct {
	freeze.Wanted
	Error string
}

// unmatchedPatterns tells which patterns of a freeze match none of the datasets that the job takes.
func (v *RunState) unmatchedPatterns(z *Freeze) (why string) {
	var lost []string
	for _, pattern := range z.Datasets {
		alone := Freeze{Datasets: []string{pattern}}
		covers := func(dataset string) bool { return alone.covers(v.Root, dataset) }
		idle := slices.Collect(maps.Keys(v.Unchanged))
		if !slices.ContainsFunc(idle, covers) && !slices.ContainsFunc(v.Source.Datasets, func(d *zfs.Dataset) bool { return covers(d.Name) }) {
			lost = append(lost, strconv.Quote(pattern))
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("datasets: %s matches none of the job's datasets", strings.Join(lost, ", "))
}

// freezesFor are those that stand still for snapshots to be taken, by full name.
func (v *RunState) freezesFor(snapshots []string) (out []freeze.Wanted, astray []UnmatchedFreeze) {
	for i := range v.Job.Freeze {
		z := &v.Job.Freeze[i]
		w := freeze.Wanted{Spec: z.spec(), Required: z.OnFailure != "continue"}
		for _, full := range snapshots {
			if dataset, _, _ := strings.Cut(full, "@"); z.covers(v.Root, dataset) {
				w.Datasets = append(w.Datasets, dataset)
			}
		}
		if why := v.unmatchedPatterns(z); why != "" {
			astray = append(astray, UnmatchedFreeze{w, why})
		} else if len(w.Datasets) > 0 {
			out = append(out, w)
		}
	}
	return out, astray
}

// addFreezePartners adds to the datasets that changed those that share an application with one
// of them: what it has in memory may change them when it is frozen, and its snapshots are
// only good together.
func (v *RunState) addFreezePartners(changed map[string]bool) {
	for again := true; again; {
		again = false
		for i := range v.Job.Freeze {
			z := &v.Job.Freeze[i]
			if !slices.ContainsFunc(v.Source.Datasets, func(d *zfs.Dataset) bool { return changed[d.Name] && z.covers(v.Root, d.Name) }) {
				continue
			}
			for _, d := range v.Source.Datasets {
				if !changed[d.Name] && z.covers(v.Root, d.Name) {
					changed[d.Name], again = true, true
				}
			}
		}
	}
}

// Freezes tells whether an application stands still for snapshots of a dataset.
func (v *RunState) freezes(dataset string) bool {
	return slices.ContainsFunc(v.Job.Freeze, func(z Freeze) bool { return z.covers(v.Root, dataset) })
}

// freezeFaults are what is wrong with the freezes of a job.
func (j *Job) freezeFaults(f *faults) {
	seen := map[string]bool{}
	for i := range j.Freeze {
		z := &j.Freeze[i]
		s := z.spec()
		if f.at = "freeze: "; s.Label() != "" {
			f.at = fmt.Sprintf("freeze %q: ", s.Label())
		}
		f.add(s.Check())
		f.word("on_failure", z.OnFailure, "stop", "continue")
		f.patterns("datasets", z.Datasets)
		if !j.Recursive && len(z.Datasets) > 0 {
			f.bad("datasets has no effect without recursive = true: the job has one dataset")
		}
		if seen[s.Label()] {
			f.bad("there are two of that name: give them names")
		}
		seen[s.Label()] = true
		f.at = ""
	}
	if len(j.Freeze) > 0 && j.Snapshots.Take == "" {
		f.bad("freeze has no effect without snapshots.take")
	}
}
