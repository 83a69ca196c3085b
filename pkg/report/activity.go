package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// activity is work in progress that is not a stream.
type activity struct {
	describe func() string // current description
	since    time.Time
}

// minActivityAge is the age from which an activity is shown. Shorter ones would flicker.
const minActivityAge = time.Second

// activities holds the running activities in order of their start. The owner does the locking.
type activities struct {
	running   []*activity
	showShort bool // show short ones too
}

func (a *activities) begin(what func() string, now time.Time) *activity {
	one := &activity{describe: func() string { return oneLine(what()) }, since: now}
	a.running = append(a.running, one)
	return one
}

func (a *activities) end(one *activity) {
	a.running = slices.DeleteFunc(a.running, func(other *activity) bool { return other == one })
}

// describeProgress describes the running streams and activities on one line, or returns "" if there are none.
func describeProgress(s *streams, a *activities, now time.Time) string {
	parts := a.lines(now)
	if len(s.running) > 0 {
		parts = append([]string{s.report(now)}, parts...)
	}
	return strings.Join(parts, "; ")
}

// lines describes the activities to show.
func (a *activities) lines(now time.Time) (out []string) {
	for _, one := range a.running {
		switch took := now.Sub(one.since); {
		case took >= minActivityAge:
			out = append(out, fmt.Sprintf("%s, %s", one.describe(), whole(took)))
		case a.showShort:
			out = append(out, one.describe())
		}
	}
	return out
}

// fixedText returns a function that returns what.
func fixedText(what string) func() string { return func() string { return what } }
