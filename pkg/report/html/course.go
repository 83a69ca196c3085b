package html

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/job/forecast"
	"zxfer/pkg/report"
	"zxfer/pkg/report/history"
	"zxfer/pkg/size"
)

// Position of the curve in pixels from the top. Marks are above it, the bottlenecks and the time
// axis below.
const (
	plotTop    = 22
	plotHeight = 200
	plotScale  = 1000 // height of the coordinates of its paths
)

// course is what happened during a command, drawn over a time axis.
type course struct {
	Areas    []area
	Outline  string // SVG path
	Slices   []slice
	Rates    []tick // At in pixels
	Times    []tick
	Lines    []line
	Marks    []mark
	Unmarked int // marks that were dropped
	Band     []band
	Limits   []limit
	Rows     []row
	Omitted  int
	Points   int
	Wide     string // width of the coordinates
	Summary  string // text alternative
}

// area is a stretch of the curve with one bottleneck.
type area struct{ Path, Class string }

// slice is a hover area that shows the rate of a moment.
type slice struct{ X, Width, Text string }

// line is a constant rate.
type line struct {
	Y, LabelY int
	Label     string
	Class     string
}

// band is a stretch of time with one bottleneck.
type band struct{ X, Width, Class, Label, Text string }

// mark is a marked event.
type mark struct {
	X     string
	Sign  string
	Class string
	Text  string // what happened
	At    string // when
	Of    string // affected dataset
	Left  bool   // the sign is drawn to the left, at the right end
}

// row is the timeline of a dataset.
type row struct {
	Name, Note string
	Spans      []span
	Moved      string
	Rate       string
	Limit      *limit
	Stopped    bool // its last stream failed
	bytes      uint64
	seconds    float64
}

// span is one stream on a timeline.
type span struct{ X, Width, Class, Text string }

// courseOf returns the drawing of a course, or nil if nothing was moved.
func courseOf(c *history.Recording, expected *forecast.Expected) *course {
	if len(c.Moved.Slices) == 0 || c.Length <= 0 {
		return nil
	}
	d := &course{Points: len(c.Moved.Slices), Times: timeTicks(c.Length), Limits: limits(c), Omitted: c.Omitted}
	d.Rows = rows(c)
	heights := rateOf(c)
	most, moved := slices.Max(heights), 0.0
	for _, s := range c.Moved.Slices {
		moved += s.Bytes
	}
	if expected != nil && float64(expected.BytesPerSecond) < 3*most {
		most = max(most, float64(expected.BytesPerSecond))
	}
	axis := ratesUpTo(most)
	y := func(rate float64) int { return plotTop + plotHeight - int(math.Round(plotHeight*rate/axis.top)) }
	for n := 0; float64(n)*axis.step <= axis.top*1.001; n++ {
		r := float64(n) * axis.step
		d.Rates = append(d.Rates, tick{Label: axis.label(r), At: fmt.Sprint(y(r))})
	}
	d.curve(c, heights, axis.top)
	d.bands(c)
	d.marks(c)
	d.Unmarked = c.Marks.Dropped
	mean := moved / c.Length.Seconds()
	d.Lines = append(d.Lines, line{Y: y(mean), Label: "mean " + rate(moved, c.Length.Seconds()), Class: "mean"})
	if expected != nil && float64(expected.BytesPerSecond) <= axis.top {
		d.Lines = append(d.Lines, line{Y: y(float64(expected.BytesPerSecond)), Label: "expected " + size.Rate(expected.BytesPerSecond), Class: "expected"})
	}
	for i := range d.Lines {
		d.Lines[i].LabelY = d.Lines[i].Y - 5
	}
	if len(d.Lines) == 2 && abs(d.Lines[0].Y-d.Lines[1].Y) < 16 { // their labels would overlap
		lower := 0
		if d.Lines[1].Y > d.Lines[0].Y {
			lower = 1
		}
		d.Lines[lower].LabelY = d.Lines[lower].Y + 14
	}
	d.Summary = fmt.Sprintf("rate over %s, at most %s", report.Seconds(c.Length.Seconds()), size.Rate(uint64(slices.Max(heights))))
	return d
}

func abs(n int) int { return max(n, -n) }

// rateOf returns the rate of each slice. The last slice may be incomplete: its rate is the rate of
// the elapsed part, unless that is too short.
func rateOf(c *history.Recording) []float64 {
	width := c.Moved.Width.Seconds()
	out := make([]float64, len(c.Moved.Slices))
	for i, s := range c.Moved.Slices {
		took := min(width, c.Length.Seconds()-float64(i)*width)
		if took < width/4 && i > 0 {
			took = width
		}
		if took > 0 {
			out[i] = s.Bytes / took
		}
	}
	return out
}

// curve draws the rate of each slice: areas in the color of their bottleneck, and an outline.
func (d *course) curve(c *history.Recording, heights []float64, top float64) {
	width, length := c.Moved.Width, c.Length
	const wide = 10_000
	d.Wide = fmt.Sprint(wide)
	x := func(i int) string {
		return fmt.Sprintf("%.4g", wide*min(1, float64(i)*float64(width)/float64(length)))
	}
	y := func(i int) string { return fmt.Sprintf("%.4g", plotScale*(1-heights[i]/top)) }
	var outline, path strings.Builder
	fmt.Fprintf(&outline, "M0 %d", plotScale)
	for i, s := range c.Moved.Slices {
		name, class := limitIn(s)
		step := fmt.Sprintf("V%sH%s", y(i), x(i+1))
		outline.WriteString(step)
		if i == 0 || d.Areas[len(d.Areas)-1].Class != class {
			d.Areas = append(d.Areas, area{Class: class})
			path.Reset()
			fmt.Fprintf(&path, "M%s %d", x(i), plotScale)
		}
		path.WriteString(step)
		d.Areas[len(d.Areas)-1].Path = path.String() + fmt.Sprintf("V%dZ", plotScale)
		at := time.Duration(i) * width
		d.Slices = append(d.Slices, slice{X: share(at, length), Width: share(min(width, length-at), length),
			Text: fmt.Sprintf("at %s: %s, %s", report.Seconds(at.Seconds()), cmp.Or(rate(heights[i], 1), "nothing"), limitedBy(name))})
	}
	fmt.Fprintf(&outline, "V%d", plotScale)
	d.Outline = outline.String()
}

func limitedBy(name string) string {
	if name == nothingRan || name == nothingStoodOut {
		return name
	}
	return "limited by " + name
}

// bands draws the bottlenecks over time, below the curve.
func (d *course) bands(c *history.Recording) {
	began := 0
	all := c.Moved.Slices
	for i := range all {
		name, class := limitIn(all[i])
		if i+1 < len(all) {
			if next, _ := limitIn(all[i+1]); next == name {
				continue
			}
		}
		from, to := time.Duration(began)*c.Moved.Width, min(c.Length, time.Duration(i+1)*c.Moved.Width)
		b := band{X: share(from, c.Length), Width: share(to-from, c.Length), Class: class,
			Text: fmt.Sprintf("%s to %s: %s", report.Seconds(from.Seconds()), report.Seconds(to.Seconds()), limitedBy(name))}
		if to-from > c.Length/8 {
			b.Label = name
		}
		d.Band = append(d.Band, b)
		began = i + 1
	}
}

// marks draws interruptions and resumptions.
func (d *course) marks(c *history.Recording) {
	for _, m := range c.Marks.All() {
		v := mark{X: share(m.At, c.Length), At: report.Seconds(m.At.Seconds()), Of: name(m.Source), Left: m.At > c.Length*9/10}
		if m.To != "" {
			v.Of += " to " + name(m.To)
		}
		switch m.Event {
		case history.Stopped:
			v.Sign, v.Class, v.Text = "✕", "stopped", "stopped: "+text(m.Text)
		case history.Resumed:
			v.Sign, v.Class, v.Text = "▶", "resumed", "resumed: "+size.Text(m.Done)+" already present"
		default:
			v.Sign, v.Class, v.Text = "↻", "resumed", "restarted"
		}
		d.Marks = append(d.Marks, v)
	}
}

// rows returns the datasets in order of their start.
func rows(c *history.Recording) []row {
	var out []*row
	of := map[[3]string]*row{}
	for i := range c.Spans {
		s := &c.Spans[i]
		key := [3]string{s.Source, s.Target, s.To}
		r := of[key]
		if r == nil {
			r = &row{Name: name(s.Source), Note: name(cmp.Or(s.To, s.Target))}
			of[key] = r
			out = append(out, r)
		}
		r.bytes += s.Bytes
		r.seconds += s.Seconds()
		r.Limit = cmp.Or(limitOf(s.LimitedBy), r.Limit)
		r.Spans = append(r.Spans, spanOf(s, c.Length))
		r.Stopped = s.Error != ""
	}
	var all []row
	for _, r := range out {
		r.Moved, r.Rate = size.Text(r.bytes), rate(float64(r.bytes), r.seconds)
		all = append(all, *r)
	}
	return all
}

func spanOf(s *history.Span, length time.Duration) span {
	v := span{X: share(s.Start, length), Width: share(max(s.End-s.Start, length/400), length), Class: classOf(s.LimitedBy)}
	parts := []string{fmt.Sprintf("%s to %s", report.Seconds(s.Start.Seconds()), report.Seconds(s.End.Seconds())), size.Text(s.Bytes)}
	if r := rate(float64(s.Bytes), s.Seconds()); r != "" {
		parts = append(parts, r)
	}
	if s.Streams > 1 {
		parts = append(parts, fmt.Sprintf("%d streams", s.Streams))
	}
	if s.Resumed {
		parts = append(parts, "resumed")
	}
	if s.LimitedBy != "" {
		parts = append(parts, "limited by "+text(s.LimitedBy))
	}
	if s.Error != "" {
		v.Class += " cut"
		parts = append(parts, "stopped: "+text(s.Error))
	}
	v.Text = strings.Join(parts, ", ")
	return v
}
