package report

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/plan"
)

// datasetID identifies a dataset of one or several transfers.
type datasetID struct{ part, source string }

// total is the progress of everything that was planned.
type total struct {
	progress map[datasetID]*datasetProgress // datasets with something to send
	streams  int                            // planned
	done     int                            // datasets that arrived
	moved    uint64                         // stream bytes moved by this command
	recent   []rateSample                   // within totalWindow
}

// datasetProgress is the progress of one dataset.
type datasetProgress struct {
	arrived     uint64      // bytes of streams that arrived
	current     *gauge      // the running or interrupted stream; nil between two
	interrupted bool        // now was interrupted
	remaining   []plan.Step // the streams after it
}

type rateSample struct {
	at    time.Time
	moved uint64
}

const (
	// totalWindow is the time over which the total rate is averaged, as nothing moves between two
	// streams.
	totalWindow = 15 * time.Second
	// sampleInterval is the minimum interval between two moments.
	sampleInterval = 250 * time.Millisecond
)

// plan adds a plan.
func (t *total) plan(part string, p *plan.Plan) {
	for _, d := range p.Datasets {
		if len(d.Steps) > 0 {
			t.streams += len(d.Steps)
			t.dataset(datasetID{part, d.Source}).remaining = d.Steps
		}
	}
}

func (t *total) dataset(id datasetID) *datasetProgress {
	if t.progress == nil {
		t.progress = map[datasetID]*datasetProgress{}
	}
	c := t.progress[id]
	if c == nil {
		c = &datasetProgress{}
		t.progress[id] = c
	}
	return c
}

// start starts a stream of a dataset, with the streams left after it. If a new plan after an
// interruption is smaller, it excludes what had arrived.
func (t *total) start(id datasetID, now gauge, left []plan.Step) {
	c := t.dataset(id)
	var before, after gauge
	known := c.add(&before)
	cut := c.interrupted
	c.current, c.interrupted, c.remaining = &now, false, left
	if cut && c.add(&after) && known && after.total < before.total {
		c.arrived += before.total - after.total
	}
}

// update updates the progress of a dataset's stream.
func (t *total) update(id datasetID, now gauge) {
	if c := t.dataset(id); c.current != nil {
		c.current = &now
	}
}

// end ends a dataset's stream.
func (t *total) end(id datasetID, failed bool) {
	c := t.dataset(id)
	switch {
	case c.current == nil:
	case failed:
		c.interrupted = true
	default:
		c.arrived, c.current = c.arrived+c.current.bytes, nil
	}
}

// ended ends a dataset that is not tried again. What did not arrive no longer counts.
func (t *total) ended(id datasetID, failed bool) {
	c := t.progress[id]
	if c == nil {
		return // it had nothing to send
	}
	if c.current != nil {
		c.arrived += c.current.bytes
	}
	c.current, c.interrupted, c.remaining = nil, false, nil
	if !failed {
		t.done++
	}
}

// add adds the dataset's progress to g and reports whether all its sizes are known.
func (c *datasetProgress) add(g *gauge) (known bool) {
	g.bytes, g.total, known = g.bytes+c.arrived, g.total+c.arrived, true
	if c.current != nil {
		g.bytes += c.current.bytes
		g.total += max(c.current.total, c.current.bytes)
		known = c.current.total > 0
	}
	for i := range c.remaining {
		g.total += c.remaining[i].Done + c.remaining[i].Bytes
		known = known && c.remaining[i].Bytes > 0
	}
	return known
}

// record records how much was moved by now.
func (t *total) record(now time.Time) {
	if n := len(t.recent); n > 0 && now.Sub(t.recent[n-1].at) < sampleInterval {
		return
	}
	t.recent = append(t.recent, rateSample{now, t.moved})
	for len(t.recent) > 2 && now.Sub(t.recent[0].at) > totalWindow {
		t.recent = t.recent[1:]
	}
}

// gauge returns the progress of all datasets.
func (t *total) gauge(now time.Time) gauge {
	var g gauge
	known := true
	for _, c := range t.progress {
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

// multiple reports whether more than one stream was planned.
func (t *total) multiple() bool { return t.streams > 1 }

// datasets formats how many datasets arrived, or returns "" for a single one.
func (t *total) datasets() string {
	if len(t.progress) < 2 {
		return ""
	}
	return fmt.Sprintf("%d of %s done", t.done, english.Plural(len(t.progress), "dataset", ""))
}
