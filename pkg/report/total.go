package report

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/plan"
)

// datasetID names a dataset among those of several transfers.
type datasetID struct{ part, source string }

// total is how far all is that was planned.
type total struct {
	courses map[datasetID]*course // of the datasets that have something to send
	streams int                   // that were planned
	done    int                   // datasets that arrived
	moved   uint64                // bytes of stream, by this command
	recent  []moment              // of the last totalWindow
}

// course is how far one dataset is.
type course struct {
	arrived uint64      // bytes of streams that arrived
	now     *gauge      // the stream that runs, or was cut; nil between two
	cut     bool        // it was
	left    []plan.Step // the streams after it
}

type moment struct {
	at    time.Time
	moved uint64
}

const (
	// totalWindow is the time that the rate of all is averaged over: between two
	// streams nothing moves.
	totalWindow = 15 * time.Second
	// momentEvery is how often it is looked at, at most.
	momentEvery = 250 * time.Millisecond
)

// plan takes a plan in.
func (t *total) plan(part string, p *plan.Plan) {
	for _, d := range p.Datasets {
		if len(d.Steps) > 0 {
			t.streams += len(d.Steps)
			t.of(datasetID{part, d.Source}).left = d.Steps
		}
	}
}

func (t *total) of(id datasetID) *course {
	if t.courses == nil {
		t.courses = map[datasetID]*course{}
	}
	c := t.courses[id]
	if c == nil {
		c = &course{}
		t.courses[id] = c
	}
	return c
}

// start begins a stream of a dataset, behind which others are left. What was
// planned anew after a cut and is less than before leaves out what had arrived.
func (t *total) start(id datasetID, now gauge, left []plan.Step) {
	c := t.of(id)
	var before, after gauge
	known := c.add(&before)
	cut := c.cut
	c.now, c.cut, c.left = &now, false, left
	if cut && c.add(&after) && known && after.total < before.total {
		c.arrived += before.total - after.total
	}
}

// at takes in how far a dataset's stream is.
func (t *total) at(id datasetID, now gauge) {
	if c := t.of(id); c.now != nil {
		c.now = &now
	}
}

// end ends a dataset's stream.
func (t *total) end(id datasetID, failed bool) {
	c := t.of(id)
	switch {
	case c.now == nil:
	case failed:
		c.cut = true
	default:
		c.arrived, c.now = c.arrived+c.now.bytes, nil
	}
}

// ended ends a dataset of which no more is tried: nobody waits for what did not
// arrive of it.
func (t *total) ended(id datasetID, failed bool) {
	c := t.courses[id]
	if c == nil {
		return // it had nothing to send
	}
	if c.now != nil {
		c.arrived += c.now.bytes
	}
	c.now, c.cut, c.left = nil, false, nil
	if !failed {
		t.done++
	}
}

// add adds how far the dataset is, and tells whether all its sizes are known.
func (c *course) add(g *gauge) (known bool) {
	g.bytes, g.total, known = g.bytes+c.arrived, g.total+c.arrived, true
	if c.now != nil {
		g.bytes += c.now.bytes
		g.total += max(c.now.total, c.now.bytes)
		known = c.now.total > 0
	}
	for i := range c.left {
		g.total += c.left[i].Done + c.left[i].Bytes
		known = known && c.left[i].Bytes > 0
	}
	return known
}

// note looks at how much was moved by now.
func (t *total) note(now time.Time) {
	if n := len(t.recent); n > 0 && now.Sub(t.recent[n-1].at) < momentEvery {
		return
	}
	t.recent = append(t.recent, moment{now, t.moved})
	for len(t.recent) > 2 && now.Sub(t.recent[0].at) > totalWindow {
		t.recent = t.recent[1:]
	}
}

// gauge is that of all.
func (t *total) gauge(now time.Time) gauge {
	var g gauge
	known := true
	for _, c := range t.courses {
		known = c.add(&g) && known
	}
	if !known {
		g.total = 0
	}
	if len(t.recent) > 0 {
		first := t.recent[0]
		if dt := now.Sub(first.at).Seconds(); dt > 0 {
			g.rate = uint64(float64(t.moved-first.moved) / dt)
		}
	}
	return g
}

// several tells that there is more to tell than of one stream.
func (t *total) several() bool { return t.streams > 1 }

// datasets is how many of them arrived, "" of one.
func (t *total) datasets() string {
	if len(t.courses) < 2 {
		return ""
	}
	return fmt.Sprintf("%d of %s done", t.done, english.Plural(len(t.courses), "dataset", ""))
}
