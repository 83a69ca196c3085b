package guard

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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

// thawLeft has what runs and watchdogs that are gone left frozen go on.
func thawLeft(dir string) {
	runtime.LockOSThread() // as in Serve
	defer runtime.UnlockOSThread()
	names, _ := filepath.Glob(filepath.Join(dir, notePrefix+"*")) // only a pattern that is none fails
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		s, err := f.Stat()
		var q freeze.Request
		left := false
		if mine, ok := s.Sys().(*syscall.Stat_t); err == nil && ok && s.Mode().IsRegular() && int(mine.Uid) == os.Geteuid() &&
			unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			if s.Size() > 0 && json.NewDecoder(f).Decode(&q) == nil && q.Check() == nil {
				// What it could not thaw its next freeze tells.
				left = slices.ContainsFunc(thawAll(&q, nil, ""), func(o freeze.Outcome) bool { return o.Left })
			}
			if !left || time.Since(s.ModTime()) > stubborn {
				_ = os.Remove(name)
			}
		}
		_ = f.Close()
	}
}

// thawAll has all that is wanted go on, from outside of a watchdog; b is how that began,
// where it is known, and why it ended is why nothing is proved.
func thawAll(q *freeze.Request, b *began, why string) []freeze.Outcome {
	outcomes := make([]freeze.Outcome, len(q.Wanted))
	for i := len(outcomes) - 1; i >= 0; i-- {
		o := &outcomes[i]
		if b != nil {
			*o = b.Outcomes[i]
		}
		w := &q.Wanted[i]
		a := appOf(&w.Spec, environmentOf(q, w))
		if machine, ok := a.(*guestAgent); ok {
			machine.mine = b == nil || o.Error == ""
		}
		if o.Error == "" {
			o.Error = freeze.Clean(why)
		}
		thaw(a, o, thawing)
	}
	return outcomes
}
