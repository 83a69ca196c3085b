package report

import (
	"fmt"
	"sync"
	"time"

	"zxfer/pkg/job"
)

// Watch shows what a doctor measures while it does: on a terminal in a live line,
// elsewhere in a line now and then.
type Watch struct {
	opts Options

	mu     sync.Mutex
	screen *screen // nil without a terminal
	live   []string
	shown  time.Time
}

// NewWatch returns a Watch that writes to standard error. With Verbose it also
// shows messages.
func NewWatch(o Options) *Watch {
	w := &Watch{opts: o}
	if o.Size != nil && !o.Quiet {
		w.screen = &screen{out: o.Stderr, size: o.Size}
	}
	return w
}

// Log shows a message.
func (w *Watch) Log(message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.opts.Verbose {
		w.write(Line(message) + "\n")
	}
}

// Measuring shows what is measured now.
func (w *Watch) Measuring(m job.Measuring) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := ascii(Line(m.What))
	if m.Of > 0 {
		line = fmt.Sprintf("measuring %d of %d: %s", m.N, m.Of, line)
	}
	now := w.opts.now()
	switch {
	case w.opts.Quiet:
	case w.screen != nil:
		w.live = []string{line}
		w.write("")
	case w.opts.Verbose, m.Of > 0 && now.Sub(w.shown) >= sayEvery:
		w.shown = now
		w.write(line + "\n")
	}
}

// Over takes the live line away.
func (w *Watch) Over() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.live = nil
	w.write("")
}

// write shows text, above the live line where there is one.
func (w *Watch) write(text string) {
	if w.screen != nil {
		_ = w.screen.show(text, w.live) // nowhere left to tell of it
		return
	}
	_ = writeString(w.opts.Stderr, text)
}
