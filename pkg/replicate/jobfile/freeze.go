package jobfile

import (
	"fmt"

	"zxfer/pkg/replicate"
)

// freezeFaults adds the errors in the job's freezes.
func freezeFaults(j *replicate.Job, f *faults) {
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
