package status

import (
	"time"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
)

// PauseStatus is a pause in effect.
type PauseStatus struct {
	Since         time.Time `json:"since"`
	Until         time.Time `json:"until,omitzero"` // zero = until resume
	TransfersOnly bool      `json:"transfers_only,omitempty"`
	Reason        string    `json:"reason,omitempty"`
	By            string    `json:"by,omitempty"`
	All           bool      `json:"all,omitempty"` // all jobs are paused
	// Forgotten means that the pause lasts longer than a week and has no end.
	Forgotten bool `json:"forgotten,omitempty"`
}

// Text describes the pause.
func (p *PauseStatus) Text(stamp func(time.Time) string) string {
	d := decide.Pause{Since: p.Since, Until: p.Until, TransfersOnly: p.TransfersOnly, Reason: p.Reason, By: p.By}
	text := d.Text(stamp)
	if p.Forgotten {
		text += ", since " + stamp(p.Since)
	}
	return text
}

// ClosedWindow is a target whose bandwidth is 0 now.
type ClosedWindow struct {
	To    string    `json:"to"`
	Until time.Time `json:"until"`
}

// pauseStatusOf returns the pause in effect, or nil.
func pauseStatusOf(p *decide.Pause, now time.Time) *PauseStatus {
	if !p.State(now).Active() {
		return nil
	}
	return &PauseStatus{Since: p.Since, Until: p.Until, TransfersOnly: p.TransfersOnly, Reason: p.Reason, By: p.By, All: p.All, Forgotten: p.Forgotten(now)}
}

// closedWindows returns the targets with a closed bandwidth window.
func closedWindows(j *replicate.Job, now time.Time) (all []ClosedWindow) {
	for i := range j.Targets {
		w := &j.TransferTo(&j.Targets[i]).Settings
		if until, any := w.NextChange(now); any && w.ClosedAt(now) {
			all = append(all, ClosedWindow{To: j.Targets[i].Name, Until: until})
		}
	}
	return all
}
