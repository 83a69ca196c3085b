package replicate

import (
	"cmp"
	"fmt"
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

// Request returns the request to the host, with the default timeout filled in.
func (z *Freeze) Request() freeze.Spec {
	s := z.Spec
	s.Timeout = cmp.Or(time.Duration(z.Timeout), freeze.DefaultTimeout)
	return s
}

// Covers reports whether a dataset at or below the job's source belongs to the application.
func (z *Freeze) Covers(source, dataset string) bool {
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	return len(z.Datasets) == 0 || matchesAny(z.Datasets, below)
}

// freezeFaults adds the errors in the job's freezes.
func (j *Job) freezeFaults(f *faults) {
	seen := map[string]bool{}
	for i := range j.Freeze {
		z := &j.Freeze[i]
		s := z.Request()
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
