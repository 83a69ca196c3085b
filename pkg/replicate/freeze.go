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

// Freeze is an application to freeze on the source's host while snapshots of its datasets are
// taken.
type Freeze struct {
	freeze.Spec
	// Datasets are patterns of the application's datasets (see Selects); empty means all.
	Datasets []string `toml:"datasets,omitempty"`
	// Timeout is the maximum time that it stays frozen; 0 = 30 seconds.
	Timeout Duration `toml:"timeout,omitempty"`
	// OnFailure is "stop", which takes no snapshot if the freeze fails, or "continue", which takes
	// it anyway; "" = stop.
	OnFailure string `toml:"on_failure,omitempty"`
}

// spec returns the request to the host, with the default timeout filled in.
func (z *Freeze) spec() freeze.Spec {
	s := z.Spec
	s.Within = cmp.Or(time.Duration(z.Timeout), freeze.DefaultWithin)
	return s
}

// covers reports whether a dataset at or below the job's source belongs to the application.
func (z *Freeze) covers(source, dataset string) bool {
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	return len(z.Datasets) == 0 || matchesAny(z.Datasets, below)
}

// freezesFor returns the freezes for snapshots, given by full name, and the freezes with unmatched
// patterns.
func (v *RunState) freezesFor(snapshots []string) (out []freeze.Wanted, unmatched []UnmatchedFreeze) {
	for i := range v.Job.Freeze {
		z := &v.Job.Freeze[i]
		w := freeze.Wanted{Spec: z.spec(), Required: z.OnFailure != "continue"}
		for _, full := range snapshots {
			if dataset, _, _ := strings.Cut(full, "@"); z.covers(v.Root, dataset) {
				w.Datasets = append(w.Datasets, dataset)
			}
		}
		if why := v.unmatchedPatterns(z); why != "" {
			unmatched = append(unmatched, UnmatchedFreeze{w, why})
		} else if len(w.Datasets) > 0 {
			out = append(out, w)
		}
	}
	return out, unmatched
}

// UnmatchedFreeze is a freeze with a pattern that matches no dataset. To freeze the rest would
// freeze only a part of the application.
type UnmatchedFreeze struct {
	freeze.Wanted
	Error string
}

// unmatchedPatterns returns an error text that lists the patterns without a matching dataset, or
// "".
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

// addFreezePartners adds the other datasets of an application if one of them changed. The freeze
// may flush changes to them, and the snapshots are consistent only as a set.
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

// freezes reports whether any application covers a dataset.
func (v *RunState) freezes(dataset string) bool {
	return slices.ContainsFunc(v.Job.Freeze, func(z Freeze) bool { return z.covers(v.Root, dataset) })
}

// freezeFaults adds the errors in the job's freezes.
func (j *Job) freezeFaults(f *faults) {
	seen := map[string]bool{}
	for i := range j.Freeze {
		z := &j.Freeze[i]
		s := z.spec()
		if f.at = "freeze: "; s.Label() != "" {
			f.at = fmt.Sprintf("freeze %q: ", s.Label())
		}
		f.add(s.Check())
		f.oneOf("on_failure", z.OnFailure, "stop", "continue")
		f.patterns("datasets", z.Datasets)
		if !j.Recursive && len(z.Datasets) > 0 {
			f.addf("datasets has no effect without recursive = true: the job has one dataset")
		}
		if seen[s.Label()] {
			f.addf("there are two of that name: give them names")
		}
		seen[s.Label()] = true
		f.at = ""
	}
	if len(j.Freeze) > 0 && j.Snapshots.Take == "" {
		f.addf("freeze has no effect without snapshots.take")
	}
}
