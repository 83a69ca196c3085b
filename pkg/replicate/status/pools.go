package status

import (
	"slices"
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
)

// PoolStatus holds the data errors of a pool of a job, as the last runs recorded them. Each host
// answers only for its own pool.
type PoolStatus struct {
	To   string `json:"to,omitempty"` // the target's name in the job file, "" = the source
	Pool string `json:"pool"`
	// State is OK, Damaged, or Unknown if the last query failed. Damaged pools whose host does not
	// answer remain Damaged.
	State   string    `json:"state"`
	Checked time.Time `json:"checked,omitzero"`  // start of the last run that got an answer
	Unknown string    `json:"unknown,omitempty"` // why the last query failed
	Errors  uint64    `json:"errors,omitempty"`
	// Repair states whether copies of the job can repair the errors: "yes", "partly", "no" or
	// "unknown". Why has the reason if the answer is not "yes".
	Repair string   `json:"repair,omitempty"`
	Copies []string `json:"copies,omitempty"` // to repair from
	Why    string   `json:"why,omitempty"`
}

// poolsOf returns the state of a job's pools, the source's first. Records of earlier versions have
// no pools without errors.
func poolsOf(j *replicate.Job, st *statedir.State) (all []*PoolStatus) {
	names := []string{""}
	for i := range j.Targets {
		names = append(names, j.Targets[i].Name)
	}
	for _, to := range names {
		p := st.Pools[to]
		if p == nil {
			continue
		}
		s := &PoolStatus{To: to, Pool: p.Name, State: OK, Checked: p.Checked, Unknown: p.Unknown}
		if p.Unknown != "" || p.Checked.IsZero() {
			s.State = Unknown
		}
		if st.LastRun != nil {
			if i := slices.IndexFunc(st.LastRun.Damaged, func(d *statedir.Damage) bool { return d.Target == to }); i >= 0 {
				d := st.LastRun.Damaged[i]
				s.State, s.Errors, s.Repair, s.Copies, s.Why = Damaged, d.Errors, d.Repair, d.Copies, d.Why
			}
		}
		all = append(all, s)
	}
	return all
}
