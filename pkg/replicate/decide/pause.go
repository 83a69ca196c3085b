package decide

import (
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
)

// Pause is the last pause of a job, or of all jobs. It remains recorded after its end, because
// deadlines count from there. A nil Pause means that there was none.
type Pause struct {
	Since time.Time `json:"since"`
	// Until is the end. It is zero until "resume".
	Until time.Time `json:"until,omitzero"`
	// TransfersOnly means that runs take snapshots and prune the source, but send nothing.
	TransfersOnly bool `json:"transfers_only,omitempty"`
	// Reason is one printable line, "" = none given. By is the account that paused the job.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// All means that the pause covers all jobs of the state directory.
	All bool `json:"all,omitempty"`
}

// Limits of a pause. Years beyond maxYear cannot be written as JSON in every time zone.
const (
	MaxReason = 200 // bytes
	maxPause  = 10 * 366 * 24 * time.Hour
	maxYear   = 9000
	// forgottenAfter is how long a pause without an end counts as intended.
	forgottenAfter = 7 * 24 * time.Hour
)

// PauseState is the state of a job in regard to pauses.
type PauseState string

// The states. PauseEnded is a recorded pause whose end has passed.
const (
	NotPaused       PauseState = "running"
	Paused          PauseState = "paused"
	TransfersPaused PauseState = "transfers paused"
	PauseEnded      PauseState = "ended"
)

// PauseEvent is something that happens to a job.
type PauseEvent string

// The events. EndPassed is the passing of the end of a pause. An ignoring run has the flag
// --ignore-pause.
const (
	PauseAll       PauseEvent = "pause"
	PauseTransfers PauseEvent = "pause --transfers-only"
	Resume         PauseEvent = "resume"
	EndPassed      PauseEvent = "end passes"
	ScheduledRun   PauseEvent = "scheduled run"
	ManualRun      PauseEvent = "run"
	IgnoringRun    PauseEvent = "run --ignore-pause"
)

// Next returns the state after an event. It refuses a manual run of a paused job. Runs do not
// change the state.
func (s PauseState) Next(e PauseEvent) (PauseState, error) {
	switch e {
	case PauseAll:
		return Paused, nil
	case PauseTransfers:
		return TransfersPaused, nil
	case Resume, EndPassed:
		if s.Active() {
			return PauseEnded, nil
		}
	case ManualRun:
		if s == Paused {
			return s, fault.Refusef("to end the pause: zxfer replicate resume JOB", "the job is paused")
		}
	}
	return s, nil
}

// Active reports whether a pause is in effect.
func (s PauseState) Active() bool { return s == Paused || s == TransfersPaused }

// Extent is the part of a run that a pause permits.
type Extent string

// The extents, from the least to the most.
const (
	RunNothing Extent = "nothing"
	RunSource  Extent = "source" // snapshots and retention of the source
	RunAll     Extent = "all"
)

// Extent returns which part of a run that begins with an event may happen.
func (s PauseState) Extent(e PauseEvent) Extent {
	switch {
	case e == IgnoringRun:
		return RunAll
	case s == Paused:
		return RunNothing
	case s == TransfersPaused:
		return RunSource
	}
	return RunAll
}

// State returns the state at a time.
func (p *Pause) State(now time.Time) PauseState {
	switch {
	case p == nil:
		return NotPaused
	case !p.Until.IsZero() && !now.Before(p.Until):
		return PauseEnded
	case p.TransfersOnly:
		return TransfersPaused
	}
	return Paused
}

// Stronger returns the pause that counts at a time: one that stops complete runs, or the one that
// ends later. Ended pauses count by their end.
func Stronger(a, b *Pause, now time.Time) *Pause {
	rank := func(p *Pause) int {
		return map[PauseState]int{NotPaused: 0, PauseEnded: 1, TransfersPaused: 2, Paused: 3}[p.State(now)]
	}
	switch {
	case rank(a) != rank(b):
		if rank(a) > rank(b) {
			return a
		}
		return b
	case a == nil, !a.Until.IsZero() && (b.Until.IsZero() || b.Until.After(a.Until)):
		return b
	}
	return a
}

// Forgotten reports whether a pause without an end lasts so long that it may be forgotten.
func (p *Pause) Forgotten(now time.Time) bool {
	return p.State(now).Active() && p.Until.IsZero() && now.Sub(p.Since) > forgottenAfter
}

// Check returns a usage error for a new pause that has no effect, or that lasts implausibly long.
func (p *Pause) Check(now time.Time) error {
	switch {
	case p.Until.IsZero():
	case !p.Until.After(now):
		return fault.Usagef("name a later time, or omit it to pause until resume", "the pause would end at %s, which is in the past", p.Until.Local().Format(time.DateTime))
	case p.Until.Sub(now) > maxPause:
		return fault.Usagef("omit the end to pause until resume", "the pause would end at %s, in more than ten years", p.Until.Local().Format(time.DateTime))
	}
	switch {
	case len(p.Reason) > MaxReason:
		return fault.Usagef("shorten it", "the reason has %d bytes, more than %d", len(p.Reason), MaxReason)
	case !printable.IsLine(p.Reason):
		return fault.Usagef("write one line of printable characters", "the reason contains control characters, line breaks or invalid UTF-8")
	}
	return nil
}

// Clean bounds a pause that was read from a file of another user.
func (p *Pause) Clean() {
	plausible := func(t time.Time) time.Time {
		if t.Year() < 1970 || t.Year() > maxYear {
			return time.Time{}
		}
		return t.UTC()
	}
	line := func(s string) string {
		s = printable.Line(strings.ToValidUTF8(s, "?"))
		if len(s) > MaxReason {
			s = strings.ToValidUTF8(s[:MaxReason], "")
		}
		return s
	}
	p.Since, p.Until, p.Reason, p.By = plausible(p.Since), plausible(p.Until), line(p.Reason), line(p.By)
}

// Text describes an active pause: "paused until 2026-11-27 06:00:00 (new switch, by alice)".
func (p *Pause) Text(stamp func(time.Time) string) string {
	what, until := "paused", "resume"
	if p.TransfersOnly {
		what = "transfers paused"
	}
	if !p.Until.IsZero() {
		until = stamp(p.Until)
	}
	why := strings.TrimPrefix(strings.Join([]string{p.Reason, byText(p.By)}, ", "), ", ")
	if why = strings.TrimSuffix(why, ", "); why != "" {
		why = " (" + why + ")"
	}
	return fmt.Sprintf("%s until %s%s", what, until, why)
}

func byText(by string) string {
	if by == "" {
		return ""
	}
	return "by " + by
}

// Refusal returns the error of a command that a pause forbids. resume is the command that ends
// the pause, and once, if not "", the one that ignores it.
func (p *Pause) Refusal(job, resume, once string, stamp func(time.Time) string) error {
	hint := "to end the pause: " + resume
	if once != "" {
		hint += "\nto run once in spite of it: " + once
	}
	return fault.Refusef(hint, "job %q: %s", job, p.Text(stamp))
}

// DueFrom returns the time after which the next run is due: the last success, or the moment before
// the end of a later pause that has begun.
func (p *Pause) DueFrom(success, now time.Time) time.Time {
	if p == nil || p.Until.IsZero() || p.Since.After(now) || p.Until.Before(success) {
		return success
	}
	return p.Until.Add(-time.Nanosecond)
}
