package replicate

import (
	"cmp"
	"slices"
	"time"
)

// History is what this host's runs learnt of the snapshots of a dataset, on one
// side. Names and dates of snapshots come from whoever sent them; the order in
// which they arrived (createtxg), this host's clock and this record do not.
// Without it all dates are judged anew.
type History struct {
	// Dataset is the GUID of the dataset that it is of.
	Dataset uint64 `json:"dataset,string"`
	// Seen is the createtxg of the newest snapshot that a run has judged.
	Seen uint64 `json:"seen"`
	// Kept is that of the newest when a run last removed all that was to go.
	Kept uint64 `json:"kept,omitempty"`
	// Left are what that run was to remove, by createtxg: one that is still there
	// was held, or had clones.
	Left []uint64 `json:"left,omitempty"`
	due  []uint64 // what this run is to remove
	// Dates are the snapshots that do not count by their own date, by createtxg,
	// with the one that they count by, in Unix seconds; doubted is none. It has
	// no more entries than the dataset snapshots.
	Dates map[uint64]int64 `json:"dates,omitempty"`
	// Pace is how many seconds lie between two snapshots, as a rule; 0 = not known.
	// Faster is when they were first seen to come faster; 0 = they do not.
	Pace   int64 `json:"pace,omitempty"`
	Faster int64 `json:"faster,omitempty"`
}

// untrusted is the date of a snapshot that counts for no other.
const untrusted = 0

// ahead is how far a sender's clock may be ahead of this host's: a date of that
// future is taken for the time at which the snapshot was first seen.
const ahead = time.Hour

// behind is how far a date may go back behind that of an earlier snapshot: a job
// dates its own by when its run began, and another tool takes one meanwhile.
const behind = 10 * time.Minute

// Removed takes note that a run removed all that could go.
func (h *History) Removed() { h.Kept, h.Left = h.Seen, h.due }

// Of returns the history of a dataset: h, or a new one where that is of another.
func (h *History) Of(dataset uint64) *History {
	if h == nil || h.Dataset != dataset {
		return &History{Dataset: dataset}
	}
	return h
}

// Doubts is how many snapshots have dates that are not believed.
func (h *History) Doubts() int {
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

// judge returns the points whose dates are believed, oldest first, and writes
// down those whose are not. Believed is a date that was not in the future when
// this host first saw the snapshot, and that does not go back further than behind
// that of an earlier one which is believed. So what arrives can pass for nothing but
// snapshots of the time since the newest before it.
func (h *History) judge(points []Point, now time.Time) (believed []Point) {
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
		case fresh && p.Time.After(now) && !p.Time.After(now.Add(ahead)):
			p.Time, known = now.Truncate(time.Second), true
		case p.Time.After(now.Add(ahead)):
			// Of one that is not new, this host's clock was wrong or is: it is left
			// out for as long.
			if fresh {
				dates[p.Order] = untrusted
			}
			continue
		}
		if p.Time.Before(newest.Add(-behind)) {
			dates[p.Order] = untrusted
			continue
		}
		if known {
			dates[p.Order] = p.Time.Unix()
		}
		if p.Time.After(newest) {
			newest = p.Time
		}
		believed = append(believed, p)
	}
	h.Dates = dates
	return believed
}

// limitRate follows the pace at which snapshots are taken. Where they come slower
// than before it does so at once; where they come faster, once half of the time
// has passed that as many as last take.
func (h *History) limitRate(believed []Point, last int, now time.Time) {
	if last == 0 || len(believed) < 3 {
		return
	}
	newest := believed[max(0, len(believed)-1-last):]
	var gaps []int64
	for i := range newest[1:] {
		gaps = append(gaps, int64(newest[i+1].Time.Sub(newest[i].Time)/time.Second))
	}
	slices.Sort(gaps)
	usual := gaps[len(gaps)/2]
	switch {
	case usual >= h.Pace-h.Pace/4:
		h.Pace, h.Faster = max(h.Pace, usual), 0
	case h.Faster == 0:
		h.Faster = now.Unix()
	case now.Unix()-h.Faster >= h.turn(last):
		h.Pace, h.Faster = usual, 0
	}
}

// turn is how many seconds nothing leaves the newest last: half of the time that
// it took to take them. Who sends more does not push out what was there.
func (h *History) turn(last int) int64 { return int64(last) * h.Pace / 2 }

// byOrder are points from the oldest to the newest.
func byOrder(points []Point) []Point {
	return slices.SortedStableFunc(slices.Values(points), func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), a.Time.Compare(b.Time), cmp.Compare(a.Name, b.Name))
	})
}
