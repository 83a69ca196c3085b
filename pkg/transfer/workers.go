package transfer

import (
	"sync"
)

// workers compress or decompress pieces on several cores; whoever takes a piece out
// of its ring waits until it is ready.
type workers struct {
	do    func(*piece)
	queue chan *piece
	meter meter
	idle  WaitTimers
	run   sync.WaitGroup
}

func newWorkers(stage string, n int, do func(*piece)) *workers {
	w := &workers{do: do, queue: make(chan *piece, 2*n), idle: NewWaitTimers(n)}
	for _, watch := range w.idle {
		watch.Start()
	}
	w.meter.name, w.meter.in = stage, w.idle.mean
	return w
}

func (w *workers) start() {
	for _, idle := range w.idle {
		w.run.Go(func() {
			for p := range w.queue {
				idle.Stop()
				w.do(p)
				close(p.ready)
				idle.Start()
			}
		})
	}
}

// stop ends the workers. Nothing may be queued any more.
func (w *workers) stop() {
	close(w.queue)
	w.run.Wait()
}
