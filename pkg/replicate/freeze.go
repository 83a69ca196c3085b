package replicate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate/calendar"
)

// Freeze is an application to freeze on the source's host while snapshots of its datasets are
// taken.
type Freeze struct {
	freeze.Spec
	// Datasets are patterns of the application's datasets (see SelectsName); empty means all.
	Datasets []string `toml:"datasets,omitempty"`
	// Timeout is the maximum time that it stays frozen; 0 = 30 seconds.
	Timeout calendar.Duration `toml:"timeout,omitempty"`
	// OnFailure is "stop", which takes no snapshot if the freeze fails, or "continue", which takes
	// it anyway; "" = stop.
	OnFailure string `toml:"on_failure,omitempty"`
}

// spec returns the request to the host, with the default timeout filled in.
func (z *Freeze) spec() freeze.Spec {
	s := z.Spec
	s.Timeout = cmp.Or(time.Duration(z.Timeout), freeze.DefaultTimeout)
	return s
}

// covers reports whether a dataset at or below the job's source belongs to the application.
func (z *Freeze) covers(source, dataset string) bool {
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	return len(z.Datasets) == 0 || matchesAny(z.Datasets, below)
}

// UnmatchedFreeze is a freeze with a pattern that matches no dataset. To freeze the rest would
// freeze only a part of the application.
type UnmatchedFreeze struct {
	freeze.Application
	Error string
}

// freezeSet holds the freezes of a job whose source is root.
type freezeSet struct {
	all  []Freeze
	root string
}

// addPartners marks the other datasets of an application as changed if one of them changed. The
// freeze may flush changes to them, and the snapshots are consistent only as a set.
func (f freezeSet) addPartners(changed map[string]bool) {
	for again := true; again; {
		again = false
		for i := range f.all {
			var unchanged []string
			any := false
			for name, is := range changed {
				if f.all[i].covers(f.root, name) && is {
					any = true
				} else if f.all[i].covers(f.root, name) {
					unchanged = append(unchanged, name)
				}
			}
			for _, name := range unchanged {
				changed[name], again = changed[name] || any, again || any
			}
		}
	}
}

// of returns the freezes for snapshots, given by full name, and the freezes with a pattern that
// matches none of the job's datasets.
func (f freezeSet) of(snapshots, datasets []string) (out []freeze.Application, unmatched []UnmatchedFreeze) {
	for i := range f.all {
		z := &f.all[i]
		w := freeze.Application{Spec: z.spec(), Required: z.OnFailure != "continue"}
		for _, full := range snapshots {
			if dataset, _, _ := strings.Cut(full, "@"); z.covers(f.root, dataset) {
				w.Datasets = append(w.Datasets, dataset)
			}
		}
		var without []string
		for _, pattern := range z.Datasets {
			alone := Freeze{Datasets: []string{pattern}}
			if !slices.ContainsFunc(datasets, func(name string) bool { return alone.covers(f.root, name) }) {
				without = append(without, strconv.Quote(pattern))
			}
		}
		if len(without) > 0 {
			why := fmt.Sprintf("datasets: %s matches none of the job's datasets", strings.Join(without, ", "))
			unmatched = append(unmatched, UnmatchedFreeze{w, why})
		} else if len(w.Datasets) > 0 {
			out = append(out, w)
		}
	}
	return out, unmatched
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
		f.add("", s.Check())
		f.oneOf("on_failure", z.OnFailure, "stop", "continue")
		f.patterns("datasets", z.Datasets)
		if !j.Recursive && len(z.Datasets) > 0 {
			f.addf("datasets", "datasets has no effect without recursive = true: the job has one dataset")
		}
		if seen[s.Label()] {
			f.addf("", "two entries have this name: add different names")
		}
		seen[s.Label()] = true
		f.at = ""
	}
	if len(j.Freeze) > 0 && j.Snapshots.Take == "" {
		f.addf("freeze", "freeze has no effect without snapshots.take")
	}
}
