// Package history records the course of a running command: transfer rates and
// bottlenecks over time, streams, interruptions, resumes and messages. A [Recorder]
// wraps the reporter of a job.
//
// Memory is bounded: long transfers use coarser time slices. The package neither
// displays nor measures anything.
package history

import (
	"slices"
	"time"
)

// Recording is the history of a command. Durations count from Began.
type Recording struct {
	Began    time.Time     // start of the first stream; zero if there was none
	Length   time.Duration // from Began to the last update
	Moved    Series
	Spans    []Span // sorted by start
	Omitted  int    // number of spans dropped, shortest first
	Marks    Truncated[Mark]
	Messages Truncated[Message]
}

// Span covers consecutive streams of one dataset or device, up to the first failure.
type Span struct {
	Source, Target string // datasets or devices
	To             string // target name, if the job has several targets
	Start, End     time.Duration
	Bytes          uint64 // transferred
	Streams        int
	Resumed        bool   // the first stream resumed partially received state
	LimitedBy      string // bottleneck of the longest stream
	Error          string // error of the last stream, or empty

	longest time.Duration
	running bool
}

// Seconds returns the duration of s.
func (s *Span) Seconds() float64 { return (s.End - s.Start).Seconds() }

// Event names the kind of a Mark.
type Event string

// The events.
const (
	Stopped   Event = "stopped" // a stream ended with an error
	Resumed   Event = "resumed" // a stream resumed an earlier transfer
	Restarted Event = "restarted"
)

// Mark records an event.
type Mark struct {
	At         time.Duration
	Event      Event
	Source, To string
	Text       string // error, if Event is Stopped
	Done       uint64 // bytes already on the target, if Event is Resumed
}

// Message holds one log line for the user.
type Message struct {
	At   time.Time
	Text string
}

// Truncated holds the first and the last items of a long list.
type Truncated[T any] struct {
	First, Last []T
	Dropped     int // number of items dropped in between
}

// add appends v. Each end keeps at most most items.
func (e *Truncated[T]) add(v T, most int) {
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

func (e *Truncated[T]) clone() Truncated[T] {
	return Truncated[T]{First: slices.Clone(e.First), Last: slices.Clone(e.Last), Dropped: e.Dropped}
}

// All returns the kept items in order.
func (e Truncated[T]) All() []T { return slices.Concat(e.First, e.Last) }
