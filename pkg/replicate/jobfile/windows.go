package jobfile

import (
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
)

// windowFaults adds an error for a target to which the schedule never sends.
func windowFaults(j *replicate.Job, f *faults, t *replicate.Target) {
	w := &j.TransferTo(t).Settings
	e, err := calendar.Parse(j.Schedule)
	if err != nil || w.AlwaysClosed() { // reported elsewhere
		return
	}
	if _, ok := e.Next(windowsFrom()); !ok { // no time is left
		return
	}
	if _, ok := replicate.NextOpen(e, w, 0, windowsFrom()); !ok {
		f.addf("transfer.bandwidth_window", "transfer.bandwidth_window: bandwidth = 0 applies at every time of schedule %q, so that nothing is ever sent to target %q", j.Schedule, t.Name)
	}
}

// windowsFrom is the time from which windowFaults checks a schedule. It is fixed, so that a job
// file stays valid.
func windowsFrom() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.Local) }
