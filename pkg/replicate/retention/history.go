package retention

import (
	"cmp"
	"slices"
	"time"
)

// History is retention's memory of the snapshots of one dataset on one side. The sender chooses
// names and dates of snapshots, so they may be forged. The order of arrival (createtxg), this
// host's clock and this record are trusted. Without a history, all dates are checked again.
type History struct {
	// Dataset is the GUID of the dataset.
	Dataset uint64 `json:"dataset,string"`
	// Seen is the createtxg of the newest snapshot that a run has checked.
	Seen uint64 `json:"seen"`
	// Kept is Seen at the last run that completed its pruning.
	Kept uint64 `json:"kept,omitempty"`
	// ToDestroy lists the snapshots that this run decided to destroy, by createtxg. If one still
	// exists, it had a hold or a clone.
	ToDestroy []uint64 `json:"left,omitempty"`
	pending   []uint64 // snapshots to destroy in this run
	// Dates holds replacement dates by createtxg, in Unix seconds, or untrusted. Snapshots that
	// count by their own date have no entry, and entries of destroyed snapshots are dropped.
	Dates map[uint64]int64 `json:"dates,omitempty"`
	// Interval is the usual interval between snapshots in seconds; 0 = unknown. FasterSince is the time, in
	// Unix seconds, at which shorter intervals were first seen; 0 = none.
	Interval    int64 `json:"pace,omitempty"`
	FasterSince int64 `json:"faster,omitempty"`
}

// untrusted marks a snapshot in Dates whose date is ignored.
const untrusted = 0

// maxClockAhead is the tolerance for a sender's clock that is ahead of this host's. Within it, a
// future date is replaced with the time at which the snapshot was first seen.
const maxClockAhead = time.Hour

// maxBackdating is how much earlier than its predecessor's a date may be. A job uses the start of
// its run, and another tool may take a snapshot in between.
const maxBackdating = 10 * time.Minute

// Complete records that a run completed its pruning.
func (h *History) Complete() { h.Kept, h.ToDestroy = h.Seen, h.pending }

// ForDataset returns h, or a new history if h is nil or of another dataset.
func (h *History) ForDataset(dataset uint64) *History {
	if h == nil || h.Dataset != dataset {
		return &History{Dataset: dataset}
	}
	return h
}

// CountUntrusted returns the number of snapshots with untrusted dates.
func (h *History) CountUntrusted() int {
	if h == nil {
		return 0
	}
	n := 0
	for _, at := range h.Dates {
		if at == untrusted {
			n++
		}
	}
	return n
}

// trustedPoints returns the points with trusted dates, oldest first, and records the others in
// Dates. A date is trusted if it was not in the future when the snapshot was first seen, and is
// not more than maxBackdating earlier than a trusted predecessor. Thus new snapshots cannot claim
// dates before the newest existing one.
func (h *History) trustedPoints(points []Point, now time.Time) (trusted []Point) {
	dates, seen, newest := map[uint64]int64{}, h.Seen, time.Time{}
	for _, p := range byOrder(points) {
		at, known := h.Dates[p.Order]
		fresh := p.Order > seen
		h.Seen = max(h.Seen, p.Order)
		switch {
		case known && at != untrusted:
			p.Time = time.Unix(at, 0)
		case known:
			dates[p.Order] = untrusted
			continue
		case fresh && p.Time.After(now) && !p.Time.After(now.Add(maxClockAhead)):
			p.Time, known = now.Truncate(time.Second), true
		case p.Time.After(now.Add(maxClockAhead)):
			// If an older snapshot is in the future, this host's clock is or was wrong. Skip it
			// for now.
			if fresh {
				dates[p.Order] = untrusted
			}
			continue
		}
		if p.Time.Before(newest.Add(-maxBackdating)) {
			dates[p.Order] = untrusted
			continue
		}
		if known {
			dates[p.Order] = p.Time.Unix()
		}
		if p.Time.After(newest) {
			newest = p.Time
		}
		trusted = append(trusted, p)
	}
	h.Dates = dates
	return trusted
}

// limitRate updates Interval. Longer intervals count immediately. Shorter ones count after half of the
// time that last snapshots take at the old pace.
func (h *History) limitRate(trusted []Point, last int, now time.Time) {
	if last == 0 || len(trusted) < 3 {
		return
	}
	newest := trusted[max(0, len(trusted)-1-last):]
	var gaps []int64
	for i := range newest[1:] {
		gaps = append(gaps, int64(newest[i+1].Time.Sub(newest[i].Time)/time.Second))
	}
	slices.Sort(gaps)
	usual := gaps[len(gaps)/2]
	switch {
	case usual >= h.Interval-h.Interval/4:
		h.Interval, h.FasterSince = max(h.Interval, usual), 0
	case h.FasterSince == 0:
		h.FasterSince = now.Unix()
	case now.Unix()-h.FasterSince >= h.minAge(last):
		h.Interval, h.FasterSince = usual, 0
	}
}

// minAge returns the minimum time in seconds that snapshots stay among the newest last: half of the
// time that it took to take as many. A sender therefore cannot push out old snapshots with many
// new ones.
func (h *History) minAge(last int) int64 { return int64(last) * h.Interval / 2 }

// byOrder returns the points sorted from oldest to newest.
func byOrder(points []Point) []Point {
	return slices.SortedStableFunc(slices.Values(points), func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), a.Time.Compare(b.Time), cmp.Compare(a.Name, b.Name))
	})
}
