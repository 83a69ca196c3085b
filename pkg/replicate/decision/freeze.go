package decision

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/freeze"
	"zxfer/pkg/replicate"
)

// UnmatchedFreeze is a freeze with a pattern that matches no dataset. To freeze the rest would
// freeze only a part of the application.
type UnmatchedFreeze struct {
	freeze.Application
	Error string
}

// freezeSet holds the freezes of a job whose source is root.
type freezeSet struct {
	all  []replicate.Freeze
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
				if f.all[i].Covers(f.root, name) && is {
					any = true
				} else if f.all[i].Covers(f.root, name) {
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
		w := freeze.Application{Spec: z.Request(), Required: z.OnFailure != "continue"}
		for _, full := range snapshots {
			if dataset, _, _ := strings.Cut(full, "@"); z.Covers(f.root, dataset) {
				w.Datasets = append(w.Datasets, dataset)
			}
		}
		var without []string
		for _, pattern := range z.Datasets {
			alone := replicate.Freeze{Datasets: []string{pattern}}
			if !slices.ContainsFunc(datasets, func(name string) bool { return alone.Covers(f.root, name) }) {
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
