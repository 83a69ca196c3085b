package report

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

func TestGauge(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		p      connect.Progress
		amount string
		pct    int // -1: unknown
		eta    string
	}{
		{"nothing known", connect.Progress{}, "0 B", -1, ""},
		{"no estimate", connect.Progress{Bytes: 5 << 20, Rate: 1 << 20}, "5.0 MiB", -1, ""},
		{"start", connect.Progress{Total: 1 << 30}, "0 B of 1.0 GiB", 0, ""},
		{"half", connect.Progress{Bytes: 512 << 20, Total: 1 << 30, Rate: 256 << 20}, "512 MiB of 1.0 GiB", 50, "ETA 2 s"},
		{"stalled", connect.Progress{Bytes: 512 << 20, Total: 1 << 30}, "512 MiB of 1.0 GiB", 50, ""},
		{"all bytes, still running", connect.Progress{Bytes: 1 << 30, Total: 1 << 30, Rate: 1 << 20}, "1.0 GiB of 1.0 GiB", 99, "ETA 1 s"},
		{"a little more than the estimate", connect.Progress{Bytes: 103 << 20, Total: 100 << 20, Rate: 1 << 20}, "103 MiB of 103 MiB", 99, "ETA 1 s"},
		{"estimate exceeded", connect.Progress{Bytes: 2 << 30, Total: 1 << 30, Rate: 1 << 20}, "2.0 GiB (estimate was 1.0 GiB)", -1, ""},
		{"crawling", connect.Progress{Total: 1 << 50, Rate: 1}, "0 B of 1.0 PiB", 0, "ETA >99 d"},
		{"counter went backwards", connect.Progress{Bytes: 1, Total: 1 << 30, Rate: 1 << 63}, "1 B of 1.0 GiB", 0, ""},
		{"estimate of 2^64-1", connect.Progress{Bytes: 1 << 30, Total: math.MaxUint64, Rate: 1 << 30}, "1.0 GiB of 16 EiB", 0, "ETA >99 d"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			g := gaugeOf(tt.p)
			require.Equal(t, tt.amount, g.amount())
			pct, ok := g.percent()
			if !ok {
				pct = -1
			}
			require.Equal(t, tt.pct, pct)
			require.Equal(t, tt.eta, g.etaText())
		})
	}
}

// TestTotal expects that the total counts planned streams including the parts that had arrived, and
// uses actual sizes instead of estimates.
func TestTotal(t *testing.T) {
	t.Parallel()
	c := newClock()
	step := func(done, bytes uint64) plan.Step {
		return plan.Step{Done: done, Bytes: bytes, Send: zfs.SendSpec{To: "s"}}
	}
	a := &plan.Dataset{Source: "a", Steps: []plan.Step{step(0, 100), step(0, 50)}}
	b := &plan.Dataset{Source: "b", Steps: []plan.Step{step(10, 40)}}
	var s streams
	s.total.plan("", &plan.Plan{Datasets: []*plan.Dataset{a, b, {Source: "current"}}})
	is := func(bytes, total uint64, datasets string) {
		t.Helper()
		g := s.total.gauge(c.Now())
		require.Equal(t, []uint64{bytes, total}, []uint64{g.bytes, g.total})
		require.Equal(t, datasets, s.total.datasets())
	}
	is(0, 200, "0 of 2 datasets done")
	first, second, third := streamID{id: 1}, streamID{id: 2}, streamID{id: 3}
	s.start(first, a, 0, c.Now())
	s.progress(first, connect.Progress{Bytes: 60, Total: 100}, c.Now())
	s.start(second, b, 0, c.Now())
	is(70, 200, "0 of 2 datasets done")
	c.add(time.Second)
	s.progress(second, connect.Progress{Bytes: 30, Total: 50}, c.Now())
	is(90, 200, "0 of 2 datasets done")
	require.EqualValues(t, 80, s.total.gauge(c.Now()).rate, "bytes of all streams since the first sample")
	s.finish(second, 35, false)
	s.total.ended(datasetID{source: "b"}, false)
	is(105, 195, "1 of 2 datasets done")
	s.finish(first, 70, true)
	is(115, 195, "1 of 2 datasets done")

	// After the interruption, the rest of the second snapshot remains. The other data has arrived
	// and is not sent again.
	again := &plan.Dataset{Source: "a", Steps: []plan.Step{step(5, 20), step(0, 50)}}
	s.start(third, again, 0, c.Now())
	is(125, 195, "1 of 2 datasets done")
	s.finish(third, 20, false)
	s.start(first, again, 1, c.Now())
	s.progress(first, connect.Progress{Bytes: 60, Total: 50}, c.Now())
	is(205, 205, "1 of 2 datasets done")
	s.finish(first, 60, false)
	s.total.ended(datasetID{source: "a"}, false)
	s.total.ended(datasetID{source: "current"}, false)
	is(205, 205, "2 of 2 datasets done")

	s.total.plan("other", &plan.Plan{Datasets: []*plan.Dataset{{Source: "a", Steps: []plan.Step{{}}}}})
	is(205, 0, "2 of 3 datasets done")
}

// TestTotalExcludesFailed expects that failed and skipped datasets no longer count. A dataset
// that arrived although its stream was interrupted is done.
func TestTotalExcludesFailed(t *testing.T) {
	t.Parallel()
	dataset := func(name string) *plan.Dataset {
		return &plan.Dataset{Source: name, Steps: []plan.Step{{Bytes: 100}, {Bytes: 50}}}
	}
	fails, skipped, arrives := dataset("fails"), dataset("skipped"), dataset("arrives")
	arrives.Steps = arrives.Steps[:1]
	var out strings.Builder
	text := NewText(Options{Stderr: &out, Now: newClock().Now})
	text.Planned(&send.Report{Plan: &plan.Plan{Datasets: []*plan.Dataset{fails, skipped, arrives}}})
	for id, d := range map[int]*plan.Dataset{1: fails, 2: arrives} {
		text.Started(id, d, 0)
		text.Progress(id, connect.Progress{Bytes: 60, Total: 100})
		text.Finished(id, &send.StepResult{Bytes: 60, Error: "cut"})
	}
	total := &text.streams.total
	require.EqualValues(t, 400, total.gauge(time.Time{}).total)
	text.Ended(fails, errors.New("no space"))
	text.Ended(skipped, errors.New("it needs fails"))
	require.EqualValues(t, 160, total.gauge(time.Time{}).total)
	text.Ended(arrives, nil)
	g := total.gauge(time.Time{})
	require.Equal(t, []uint64{120, 120}, []uint64{g.bytes, g.total})
	require.Equal(t, "1 of 3 datasets done", total.datasets())
}

func TestSeconds(t *testing.T) {
	t.Parallel()
	for s, want := range map[float64]string{
		0: "0.0 s", 0.04: "0.0 s", 9.94: "9.9 s", 10: "10 s", 59.9: "59 s", 60: "1 min 0 s", 3599: "59 min 59 s",
		3600: "1 h 0 min", 86399: "23 h 59 min", 86400: "1 d 0 h", 98 * 86400: "98 d 0 h", 1e12: ">99 d", math.Inf(1): ">99 d",
		-1: "0.0 s", math.NaN(): "0.0 s",
	} {
		require.Equal(t, want, Seconds(s), "%v", s)
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	require.Empty(t, rate(0))
	require.Empty(t, rate(math.MaxUint64))
	require.Equal(t, "1.5 GiB/s", rate(3<<29))
}

// TestStreamTotals expects that resumed streams start with the bytes that had arrived. If the size
// of the rest is unknown, these bytes are no estimate.
func TestStreamTotals(t *testing.T) {
	t.Parallel()
	var s streams
	r := planned()
	resume := r.Plan.Datasets[1]
	st := s.start(streamID{id: 1}, resume, 0, time.Time{})
	require.Equal(t, connect.Progress{Bytes: 5 << 30, Total: 6 << 30}, st.last)
	resume.Steps[0].Bytes = 0
	s.start(streamID{id: 2}, resume, 0, time.Time{})
	require.Zero(t, s.progress(streamID{id: 2}, connect.Progress{Bytes: 6 << 30, Total: 5 << 30}, time.Time{}).last.Total)
	require.Nil(t, s.progress(streamID{id: 3}, connect.Progress{}, time.Time{}), "never started")
	require.Nil(t, s.finish(streamID{id: 3}, 0, false))
}
