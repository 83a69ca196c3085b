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

// A note says what is held, in a file that run and watchdog have locked as one: where its
// lock is free both are gone, and who comes next thaws what it says. An empty one says
// that all goes on.

// notePrefix begins the names of notes.
const notePrefix = "frozen-"

// noteFD is the watchdog's, where there is one.
const noteFD = 3

// writeNote writes a note, and returns it open and locked.
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
		err = os.Rename(f.Name(), name) // nobody sees it before it is locked
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// renote has the watchdog's note say what is held; nil = nothing any more.
func renote(q *freeze.Request) {
	if unix.Ftruncate(noteFD, 0) != nil || q == nil {
		return // there may be none
	}
	if text, err := json.Marshal(q); err == nil { // it was read as one
		_, _ = unix.Pwrite(noteFD, text, 0) // without it the next freeze tells
	}
}

// thawLeft thaws what runs and watchdogs that ended left frozen. It thaws all of it at
// the same time.
func thawLeft(dir string) {
	names, _ := filepath.Glob(filepath.Join(dir, notePrefix+"*")) // fails only if the pattern is none
	var notes sync.WaitGroup
	for _, name := range names {
		notes.Go(func() { thawNoted(name) })
	}
	notes.Wait()
}

// thawNoted thaws what a note says, if its run and watchdog ended.
func thawNoted(name string) {
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
		// Their next freeze reports what could not be thawed.
		left = slices.ContainsFunc(thawAll(&q, nil, ""), func(o freeze.Outcome) bool { return o.Left })
	}
	if !left || time.Since(s.ModTime()) > stubborn {
		_ = os.Remove(name)
	}
}

// thawAll thaws all applications of a request at the same time, outside of a watchdog. b
// is the result of their freezing, nil if it is unknown. why is the reason that nothing is
// proved.
func thawAll(q *freeze.Request, b *began, why string) []freeze.Outcome {
	outcomes := make([]freeze.Outcome, len(q.Wanted))
	var all sync.WaitGroup
	for i := range outcomes {
		o, w := &outcomes[i], &q.Wanted[i]
		if b != nil {
			*o = b.Outcomes[i]
		}
		a := appOf(&w.Spec, environmentOf(q, w))
		if machine, ok := a.(*guestAgent); ok {
			machine.mine = b == nil || o.Error == ""
		}
		if o.Error == "" {
			o.Error = freeze.Clean(why)
		}
		all.Go(func() {
			runtime.LockOSThread() // as in serve; the thread ends with this goroutine
			thaw(a, o, thawing)
		})
	}
	all.Wait()
	return outcomes
}
