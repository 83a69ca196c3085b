package report

import (
	"fmt"
	"slices"
	"time"
)

// activity is something under way that no stream tells of.
type activity struct {
	what  string
	since time.Time
}

// notable is how long one lasts before it is shown: shorter ones would only
// flicker.
const notable = time.Second

// activities are those under way, in the order in which they began. Their owner
// does the locking.
type activities struct{ under []*activity }

func (a *activities) begin(what string, now time.Time) *activity {
	one := &activity{what: oneLine(what), since: now}
	a.under = append(a.under, one)
	return one
}

func (a *activities) end(one *activity) {
	a.under = slices.DeleteFunc(a.under, func(other *activity) bool { return other == one })
}

// lines are those worth showing.
func (a *activities) lines(now time.Time) (out []string) {
	for _, one := range a.under {
		if took := now.Sub(one.since); took >= notable {
			out = append(out, fmt.Sprintf("%s, %s", one.what, whole(took)))
		}
	}
	return out
}

// Doing shows what no stream tells of, while it lasts.
func (t *Text) Doing(what string) (done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.doing.begin(what, t.opts.now())
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.doing.end(one)
		if t.screen != nil {
			t.paint("")
		}
	}
}

// Tick is called now and then, so that what is shown stays fresh where nothing
// happens.
func (t *Text) Tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.screen != nil {
		t.paint("")
	}
}
