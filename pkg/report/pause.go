package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/runner"
)

// Pauses returns the pause of a job, and the targets to which a bandwidth window of 0 stops
// transfers.
func Pauses(j *runner.JobStatus, stamp func(time.Time) string) (facts []string) {
	if j.Pause != nil {
		facts = append(facts, shorten(oneLine(j.Pause.Text(stamp)), 2*decide.MaxReason))
	}
	for _, w := range j.Windows {
		facts = append(facts, fmt.Sprintf("no transfers to %s until %s (bandwidth_window)", oneLine(w.To), stamp(w.Until)))
	}
	return facts
}

// forgotten describes a pause that may be forgotten, or returns "".
func forgotten(j *runner.JobStatus) string {
	if j.Pause == nil || !j.Pause.Forgotten {
		return ""
	}
	return Pauses(j, stamp)[0]
}

// pausedJobs counts paused jobs, and lists them with their pauses.
func pausedJobs(jobs []summarizedJob) (count string, lines []string) {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j summarizedJob) bool { return j.Pause == nil })
	if len(jobs) == 0 {
		return "", nil
	}
	for _, j := range jobs {
		lines = append(lines, j.Job+": "+strings.Join(Pauses(j.JobStatus, stamp), ", "))
	}
	return fmt.Sprintf(", %d paused", len(jobs)), lines
}
