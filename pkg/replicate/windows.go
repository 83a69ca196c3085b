package replicate

import (
	"time"

	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/transport"
)

// maxTries bounds the search of NextOpen. Each try skips one time of the schedule or one window.
const maxTries = 400

// NextOpen returns the first time of a schedule after t at which transfers may run, also a grace
// later, or false if there is none. w has the bandwidth windows; it may be nil. If the windows are
// never open for so long, the grace does not count.
func NextOpen(e *calendar.Event, w *transport.Settings, grace time.Duration, t time.Time) (time.Time, bool) {
	if w == nil || len(w.BandwidthWindows) == 0 {
		return e.Next(t)
	}
	for _, grace := range []time.Duration{grace, 0} {
		from := t
		for range maxTries {
			due, ok := e.Next(from)
			if !ok {
				break
			}
			from = due
			for _, at := range []time.Time{due, due.Add(grace)} {
				if !w.ClosedAt(at) {
					continue
				}
				if opens, any := w.NextChange(at); any {
					from = opens.Add(-time.Nanosecond)
				}
			}
			if from.Equal(due) && !w.ClosedAt(due) {
				return due, true
			}
		}
	}
	return time.Time{}, false
}
