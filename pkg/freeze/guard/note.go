package guard

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/freeze"
)

// A note lists what is frozen. The run and the watchdog share its lock, so a free lock means that
// both have ended. The next run then thaws what the note lists. An empty note lists nothing.

// notePrefix starts the file names of notes.
const notePrefix = "frozen-"

// noteFD is the note's descriptor in the watchdog, if there is a note.
const noteFD = 3

// writeNote writes a note and returns it open and locked.
func writeNote(dir string, q *freeze.Request) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(dir, "new-")
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, notePrefix+filepath.Base(f.Name()))
	err = errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), json.NewEncoder(f).Encode(q))
	if err == nil {
		err = os.Rename(f.Name(), name) // visible only once it is locked
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// rewriteNote rewrites the watchdog's note; nil empties it.
func rewriteNote(q *freeze.Request) {
	if unix.Ftruncate(noteFD, 0) != nil || q == nil {
		return // there may be no note
	}
	if text, err := json.Marshal(q); err == nil { // cannot fail: it was decoded from JSON
		_, _ = unix.Pwrite(noteFD, text, 0) // on error, the next freeze reports what is still frozen
	}
}

// thawNotes thaws concurrently what ended runs and watchdogs left frozen.
func thawNotes(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, notePrefix+"*")) // fails only for an invalid pattern
	var notes sync.WaitGroup
	for _, name := range names {
		notes.Go(func() { thawNote(name) })
	}
	notes.Wait()
}

// thawNote thaws what a note lists, if its run and watchdog ended.
func thawNote(name string) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return
	}
	mine, ok := s.Sys().(*syscall.Stat_t)
	if !ok || !s.Mode().IsRegular() || int(mine.Uid) != os.Geteuid() || unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	}
	var q freeze.Request
	left := false
	if s.Size() > 0 && json.NewDecoder(f).Decode(&q) == nil && q.Check() == nil {
		// The next freeze of an application reports a failed thaw.
		left = slices.ContainsFunc(thawAll(&q, nil, ""), func(o freeze.Outcome) bool { return o.Left })
	}
	if !left || time.Since(s.ModTime()) > retryTimeout {
		_ = os.Remove(name)
	}
}

// thawAll thaws all applications of a request concurrently, outside of a watchdog. b is the result
// of freezing, or nil if unknown. why becomes the error of freezes without one.
func thawAll(q *freeze.Request, b *freezeMessage, why string) []freeze.Outcome {
	outcomes := make([]freeze.Outcome, len(q.Wanted))
	var all sync.WaitGroup
	for i := range outcomes {
		o, w := &outcomes[i], &q.Wanted[i]
		if b != nil {
			*o = b.Outcomes[i]
		}
		a := newApp(&w.Spec, environmentFor(q, w))
		if machine, ok := a.(*guestAgent); ok {
			machine.owned = b == nil || o.Error == ""
		}
		if o.Error == "" {
			o.Error = freeze.Clean(why)
		}
		all.Go(func() {
			runtime.LockOSThread() // see serve; the thread ends with this goroutine
			thaw(a, o, thawTimeout)
		})
	}
	all.Wait()
	return outcomes
}
