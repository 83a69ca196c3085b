package history

import (
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
)

// silent records messages and ignores all other calls.
type silent struct{ log []string }

func (s *silent) Log(m string)                          { s.log = append(s.log, m) }
func (*silent) Activity(string) func()                  { return func() {} }
func (*silent) Planned(*send.Report)                    {}
func (*silent) Started(int, *plan.Dataset, int)         {}
func (*silent) Progress(int, connect.Progress)          {}
func (*silent) Finished(int, *send.StepResult)          {}
func (*silent) Ended(*plan.Dataset, error)              {}
func (*silent) DevicePlanned(*dev.Report)               {}
func (*silent) DeviceStarted(*dev.Report, uint64)       {}
func (*silent) DeviceFinished(*dev.Report, *dev.Result) {}

// clock is a settable clock.
type clock struct{ now time.Time }

func (c *clock) to(seconds float64) {
	c.now = time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

func newRecorder() (*Recorder, *clock) {
	c := &clock{}
	c.to(0)
	return NewRecorder(func() time.Time { return c.now }), c
}

func dataset(name string, done uint64) *plan.Dataset {
	return &plan.Dataset{Source: name, Target: "vault/" + name, Steps: []plan.Step{{Kind: plan.Full, Done: done}}}
}

func sum(s Series) (bytes float64) {
	for _, slice := range s.Slices {
		bytes += slice.Bytes
	}
	return bytes
}

// TestResumedStream records an interrupted and resumed stream.
func TestResumedStream(t *testing.T) {
	t.Parallel()
	r, at := newRecorder()
	to := &silent{}
	rep := r.Send(to, "")
	at.to(5)
	rep.Started(1, dataset("tank/a", 0), 0)
	for i := 1; i <= 4; i++ {
		at.to(5 + float64(i))
		rep.Progress(1, connect.Progress{Bytes: uint64(i) * 100, LimitedBy: transfer.LimitNetwork})
	}
	at.to(12)
	rep.Finished(1, &send.StepResult{Bytes: 450, Error: "the connection lost"})
	rep.Log("try 1 of 5 in 1 s")
	at.to(13)
	rep.Started(2, dataset("tank/a", 450), 0)
	at.to(15)
	rep.Progress(2, connect.Progress{Bytes: 850, LimitedBy: transfer.LimitTarget})
	at.to(16)
	rep.Finished(2, &send.StepResult{Bytes: 550, Bottleneck: connect.Bottleneck{LimitedBy: transfer.LimitTarget}})

	c := r.Recording()
	require.Equal(t, []string{"try 1 of 5 in 1 s"}, to.log, "log lines are passed on")
	require.Equal(t, "07:08:14", c.Began.Format(time.TimeOnly), "the start of the first stream")
	require.Equal(t, 11*time.Second, c.Length)
	require.InDelta(t, 1000, sum(c.Moved), 1e-6)
	slice := func(second float64) Slice { return c.Moved.Slices[int(second/c.Moved.Width.Seconds())] }
	limit, ok := slice(2.5).Limit()
	require.True(t, ok)
	require.Equal(t, transfer.LimitNetwork, limit)
	_, ok = slice(7.5).Limit()
	require.False(t, ok, "nothing ran between the tries")
	limit, _ = slice(9).Limit()
	require.Equal(t, transfer.LimitTarget, limit)
	require.Len(t, c.Spans, 2)
	require.Equal(t, Span{Source: "tank/a", Target: "vault/tank/a", Start: 8 * time.Second, End: 11 * time.Second, Bytes: 550, Streams: 1,
		Resumed: true, LimitedBy: transfer.LimitTarget, longest: 3 * time.Second}, c.Spans[1])
	require.Equal(t, "the connection lost", c.Spans[0].Error)
	require.Equal(t, []Mark{
		{At: 7 * time.Second, Event: Stopped, Source: "tank/a", Text: "the connection lost"},
		{At: 8 * time.Second, Event: Resumed, Source: "tank/a", Done: 450},
	}, c.Marks.All())
}

// TestDevice checks that a complete device counts with its full size, even if less was sent.
func TestDevice(t *testing.T) {
	t.Parallel()
	r, at := newRecorder()
	rep := r.Device(&silent{})
	report := &dev.Report{Source: "/dev/a", Target: "beta:/dev/b", Size: 1000}
	rep.DeviceStarted(report, 200)
	at.to(2)
	rep.Progress(1, connect.Progress{Bytes: 600})
	at.to(3)
	rep.DeviceFinished(report, &dev.Result{})
	c := r.Recording()
	require.InDelta(t, 800, sum(c.Moved), 1e-6)
	require.Equal(t, uint64(800), c.Spans[0].Bytes)
	require.Equal(t, Resumed, c.Marks.All()[0].Event)
}

// TestBounded checks that three days of two concurrent streams respect the limits and
// that no bytes are lost.
func TestBounded(t *testing.T) {
	t.Parallel()
	r, at := newRecorder()
	rep := r.Send(&silent{}, "vault")
	rep.Started(1, dataset("tank/long", 0), 0)
	second, bytes, id := 0.0, uint64(0), 1
	moved := 0.0
	for ; second < 3*24*3600; second += 20 {
		at.to(second)
		bytes += 1 << 30
		moved += 1 << 30
		rep.Progress(1, connect.Progress{Bytes: bytes, LimitedBy: transfer.LimitSource})
		id++
		name := fmt.Sprintf("tank/%d", id)
		rep.Started(id, dataset(name, 0), 0)
		at.to(second + float64(id%7))
		failure := ""
		if id%50 == 0 {
			failure = strings.Repeat("é", 10_000)
		}
		rep.Finished(id, &send.StepResult{Bytes: 1 << 20, Error: failure})
		moved += 1 << 20
		rep.Log(strings.Repeat("x", 10_000))
	}
	c := r.Recording()
	require.InEpsilon(t, moved, sum(c.Moved), 1e-9)
	require.LessOrEqual(t, len(c.Moved.Slices), maxSlices)
	require.Greater(t, len(c.Moved.Slices), maxSlices/3)
	require.Len(t, c.Spans, maxSpans)
	require.Equal(t, "tank/long", c.Spans[0].Source, "the longest is kept")
	require.Equal(t, id-maxSpans, c.Omitted)
	require.Equal(t, c.Length, c.Spans[0].End, "it runs")
	require.LessOrEqual(t, len(c.Marks.All()), 2*maxMarks)
	require.Equal(t, id, len(c.Messages.All())+c.Messages.Dropped+1)
	for _, m := range c.Messages.All() {
		require.LessOrEqual(t, len(m.Text), maxText+len("…"))
	}
}

// TestSeries checks with random times that the slices contain all added bytes.
func TestSeries(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewSource(1))
	for range 300 {
		var s Series
		total, at := 0.0, time.Duration(0)
		for range random.Intn(50) {
			from := at
			at += time.Duration(math.Exp(random.Float64()*30)) % (400 * time.Hour)
			bytes := random.Float64() * 1e9
			total += bytes
			s.add(from, at, bytes, []string{"a", "b", ""}[random.Intn(3)])
			require.LessOrEqual(t, len(s.Slices), maxSlices)
			require.GreaterOrEqual(t, time.Duration(len(s.Slices))*s.Width, at)
			require.Less(t, time.Duration(len(s.Slices)-1)*s.Width, max(at, 1), "no slice after the end")
		}
		require.InDelta(t, total, sum(s), 1+total*1e-9)
	}
}

// TestNilRecorder checks that a nil Recorder returns the job's own reporter.
func TestNilRecorder(t *testing.T) {
	t.Parallel()
	var r *Recorder
	to := &silent{}
	require.Same(t, to, r.Send(to, ""))
	require.Same(t, to, r.Device(to))
	r.Log("into nothing")
	require.Zero(t, r.Recording())
}
