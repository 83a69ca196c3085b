package report

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// activity is something under way that no stream tells of.
type activity struct {
	what  func() string // as it stands now
	since time.Time
}

// notable is how long one lasts before it is shown: shorter ones would only
// flicker.
const notable = time.Second

// activities are those under way, in the order in which they began. Their owner
// does the locking.
type activities struct {
	under []*activity
	all   bool // are worth showing, also the short ones
}

func (a *activities) begin(what func() string, now time.Time) *activity {
	one := &activity{what: func() string { return oneLine(what()) }, since: now}
	a.under = append(a.under, one)
	return one
}

func (a *activities) end(one *activity) {
	a.under = slices.DeleteFunc(a.under, func(other *activity) bool { return other == one })
}

// lines are those worth showing.
func (a *activities) lines(now time.Time) (out []string) {
	for _, one := range a.under {
		switch took := now.Sub(one.since); {
		case took >= notable:
			out = append(out, fmt.Sprintf("%s, %s", one.what(), whole(took)))
		case a.all:
			out = append(out, one.what())
		}
	}
	return out
}

// state is one line about what is going on, "" where nothing is.
func state(s *streams, a *activities, now time.Time) string {
	parts := a.lines(now)
	if len(s.running) > 0 {
		parts = append([]string{s.report(now)}, parts...)
	}
	return strings.Join(parts, "; ")
}

// said is what does not change while it is done.
func said(what string) func() string { return func() string { return what } }
