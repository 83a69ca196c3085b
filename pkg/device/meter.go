package device

import (
	"slices"
	"sync/atomic"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// stageMeter measures a stage by the working time of its goroutines. Waiting time
// would not do, because each goroutine serves several stages in turn.
type stageMeter struct {
	name  string
	bytes atomic.Int64
	watch transfer.WaitTimers
}

func newStageMeter(name string, n int) *stageMeter {
	return &stageMeter{name: name, watch: transfer.NewWaitTimers(n)}
}

// running reports whether any goroutine of the stage is working.
func (e *stageMeter) running() bool {
	return slices.ContainsFunc(e.watch, (*tcp.WaitTimer).Running)
}

// stage returns the statistics of the stage. Idle time counts as waiting for output
// if the stage produces data, and as waiting for input if it consumes data.
func (e *stageMeter) stage(life time.Duration, produces bool) transfer.Stage {
	busy := min(life, e.watch.Mean())
	s := transfer.Stage{Name: e.name, Bytes: e.bytes.Load(), Busy: busy}
	if produces {
		s.WaitOut = life - busy
	} else {
		s.WaitIn = life - busy
	}
	return s
}
