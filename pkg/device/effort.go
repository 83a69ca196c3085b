package device

import (
	"slices"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// effort meters a stage of several goroutines by the time that they work, not
// by the time that they wait: one goroutine serves several stages here, each
// in its turn.
type effort struct {
	name  string
	bytes atomic.Int64
	watch transfer.WaitTimers
}

func newEffort(name string, n int) *effort {
	return &effort{name: name, watch: transfer.NewWaitTimers(n)}
}

// running tells whether any of its goroutines works.
func (e *effort) running() bool {
	return slices.ContainsFunc(e.watch, (*tcp.WaitTimer).Running)
}

// stage is what the stage did. What it did not spend on work counts as waiting
// for its output if it produces, and for its input if it consumes.
func (e *effort) stage(life time.Duration, produces bool) transfer.Stage {
	busy := min(life, e.watch.Mean())
	s := transfer.Stage{Name: e.name, Bytes: e.bytes.Load(), Busy: busy}
	if produces {
		s.WaitOut = life - busy
	} else {
		s.WaitIn = life - busy
	}
	return s
}
