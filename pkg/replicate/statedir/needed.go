package statedir

import (
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/replicate"
)

// NeededHolds returns a function that reports whether a job may need its hold for a target on a snapshot, by the full
// name. A hold that it does not need was left by a crash, or its dataset is outside the job now. Without a record of the
// copy, the hold may be the only protection of the common snapshot of an absent target: then it is needed.
func (st *State) NeededHolds(j *replicate.Job, t *replicate.Target) func(snapshot string) bool {
	held, unknown, known := map[string]bool{}, map[string]bool{}, false
	for source, d := range st.Datasets {
		a := d.Targets[t.Name]
		if a == nil {
			continue
		}
		if a.BaseGUID == 0 && a.Success.IsZero() {
			unknown[source], unknown[a.Target] = true, true
			if from, err := endpoint.Parse(j.Source); err == nil {
				unknown[t.CopyOf(from.Name, source)] = true
			}
			continue
		}
		known = true
		for _, h := range a.Held {
			held[h.Source], held[h.Target] = true, true
		}
	}
	for _, g := range st.OrphansAt(t.Name) {
		for _, h := range g.Held { // the hold by which the target host recognizes the orphan
			held[h] = held[h] || t.MirrorsDatasets()
		}
	}
	return func(snapshot string) bool {
		dataset, _, _ := strings.Cut(snapshot, "@")
		return st.LastRun == nil || !known || unknown[dataset] || held[snapshot]
	}
}
