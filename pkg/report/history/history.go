// Package history keeps the course of a command while it runs: how much was
// moved when and what limited it, which streams ran, what was cut and resumed,
// and what was said. A [Recorder] stands between a job and its reporter.
//
// It keeps a bounded amount, whatever the job is: a transfer of days takes the
// memory of one of minutes, in coarser slices. It shows nothing and measures
// nothing by itself.
package history

import (
	"slices"
	"time"
)

// Course is what happened. Times count from Began.
type Course struct {
	Began    time.Time     // when the first stream began; zero where none did
	Length   time.Duration // until the last news of a stream
	Moved    Series
	Spans    []Span // by when they began
	Omitted  int    // spans that were left out, the shortest
	Marks    Ends[Mark]
	Messages Ends[Message]
}

// Span is the time in which the streams of a dataset, or a device, followed each
// other without a failure.
type Span struct {
	Source, Target string // datasets or devices
	To             string // the name of the target, where there are several
	Start, End     time.Duration
	Bytes          uint64 // that were moved
	Streams        int
	Resumed        bool   // began with what was there already
	LimitedBy      string // in the longest of the streams
	Error          string // with which it ended

	longest time.Duration
	running bool
}

// Seconds is how long it took.
func (s *Span) Seconds() float64 { return (s.End - s.Start).Seconds() }

// Event is what a Mark marks.
type Event string

// The events.
const (
	Stopped Event = "stopped" // a stream ended with an error
	Resumed Event = "resumed" // with what had arrived before
	Again   Event = "begun again"
)

// Mark is a moment to point out.
type Mark struct {
	At         time.Duration
	Event      Event
	Source, To string
	Text       string // the error of Stopped
	Done       uint64 // bytes that were there, of Resumed
}

// Message is what was said for a person.
type Message struct {
	At   time.Time
	Text string
}

// Ends are the first and the last of many.
type Ends[T any] struct {
	First, Last []T
	Dropped     int // between them
}

// add adds one and keeps most at either end.
func (e *Ends[T]) add(v T, most int) {
	if len(e.First) < most {
		e.First = append(e.First, v)
		return
	}
	e.Last = append(e.Last, v)
	if len(e.Last) > most {
		e.Last = slices.Delete(e.Last, 0, 1)
		e.Dropped++
	}
}

func (e *Ends[T]) clone() Ends[T] {
	return Ends[T]{First: slices.Clone(e.First), Last: slices.Clone(e.Last), Dropped: e.Dropped}
}

// All are those that were kept, in order.
func (e Ends[T]) All() []T { return slices.Concat(e.First, e.Last) }
