package statedir

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// maxLog is the size in bytes above which the next append drops the older half of a log. Hourly
// runs need years to reach it.
const maxLog = 32 << 20

// Store is the directory of one job.
type Store struct{ dir string }

// Open returns the store of a job, and creates it if it is missing.
func Open(stateDir, job string) (*Store, error) {
	s := &Store{dir: filepath.Join(stateDir, job)}
	if err := os.MkdirAll(stateDir, 0o755); err != nil { // stores of other users are also in it
		return nil, err
	}
	return s, os.MkdirAll(s.dir, 0o750)
}

// Peek returns the store of a job for reading. It creates nothing.
func Peek(stateDir, job string) *Store { return &Store{dir: filepath.Join(stateDir, job)} }

func (s *Store) file(name string) string { return filepath.Join(s.dir, name) }

// Append appends a run to the log and syncs it to disk.
func (s *Store) Append(r *Run) error { return s.append("runs.jsonl", r) }

func (s *Store) append(name string, v any) (err error) {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := s.shortenLog(name); err != nil {
		return err
	}
	f, err := s.open(name, os.O_RDWR|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if end > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], end-1); err != nil {
			return err
		}
		if last[0] != '\n' { // a crash truncated the previous line
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return err
	}
	if err := f.Sync(); err != nil || end > 0 {
		return err
	}
	return syncDir(s.dir)
}

// shortenLog drops the older half of a log that exceeds maxLog.
func (s *Store) shortenLog(name string) error {
	info, err := os.Lstat(s.file(name))
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxLog {
		return nil
	}
	if err != nil {
		return err
	}
	text, err := s.read(name)
	if err != nil {
		return err
	}
	text = text[len(text)/2:]
	text = text[bytes.IndexByte(text, '\n')+1:]
	return Replace(s.file(name), text, 0o640)
}

// open opens a file of the store. It follows no symlink, because root opens files in directories
// of other users.
func (s *Store) open(name string, flags int) (*os.File, error) {
	return os.OpenFile(s.file(name), flags|unix.O_NOFOLLOW, 0o640)
}

// read reads a file of the store, which must be a regular file.
func (s *Store) read(name string) ([]byte, error) {
	f, err := s.open(name, os.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() > 4*maxLog) {
		err = fmt.Errorf("%s is not a file that zxfer wrote", f.Name())
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

// Runs returns the last n runs of the log, oldest first.
func (s *Store) Runs(n int) ([]*Run, error) {
	return lastEntries(s, "runs.jsonl", n, (*Run).withoutNil)
}

// DrillLog returns the last n drills, oldest first.
func (s *Store) DrillLog(n int) ([]*Drill, error) {
	return lastEntries(s, "drills.jsonl", n, func(d *Drill) *Drill {
		d.Copies = slices.DeleteFunc(d.Copies, func(c *DrilledRun) bool { return c == nil })
		return d
	})
}

func lastEntries[R any](s *Store, name string, n int, clean func(*R) *R) ([]*R, error) {
	text, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lines := bytes.Split(text, []byte{'\n'})
	var out []*R
	for i := len(lines) - 1; i >= 0 && len(out) < n; i-- {
		r := new(R)
		if len(lines[i]) > 0 && json.Unmarshal(lines[i], r) == nil { // skip lines that a crash truncated
			out = append([]*R{clean(r)}, out...)
		}
	}
	return out, nil
}

// withoutNil removes null entries: a user may own the log.
func (r *Run) withoutNil() *Run {
	r.Targets = slices.DeleteFunc(r.Targets, func(t *TargetRun) bool { return t == nil })
	r.Damaged = slices.DeleteFunc(r.Damaged, func(d *Damage) bool { return d == nil })
	return r
}

// State reads the state of the job. It is empty before the first run.
func (s *Store) State() (*State, error) {
	st := &State{Job: filepath.Base(s.dir), State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}}
	text, err := s.read("state.json")
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, st); err != nil {
		return nil, fault.Failf("move it away: the next run looks at everything anew; what it knew of targets that are away their holds protect",
			"%s is damaged: %w", s.file("state.json"), err)
	}
	st.Job = filepath.Base(s.dir) // a user may own the directory and write another name
	if st.Datasets == nil {
		st.Datasets = map[string]*replicate.DatasetState{}
	}
	if st.LastRun != nil {
		st.LastRun.withoutNil()
	}
	maps.DeleteFunc(st.Datasets, func(_ string, d *replicate.DatasetState) bool { return d == nil })
	for _, d := range st.Datasets {
		maps.DeleteFunc(d.Targets, func(_ string, a *replicate.CopyState) bool { return a == nil })
	}
	return st, nil
}

// Save replaces the state of the job.
func (s *Store) Save(st *State) error { return s.save("state.json", st) }

func (s *Store) save(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Replace(s.file(name), append(text, '\n'), 0o640)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ErrRunning is the error of Lock if another process has the lock.
var ErrRunning = errors.New("the job is running already")

// lockPoll is the interval of attempts to lock. A blocking flock(2) could not be canceled.
const lockPoll = 200 * time.Millisecond

// Lock prevents concurrent runs of a job. If wait is false and the lock is taken, it returns
// ErrRunning. The kernel releases the lock when the process ends.
func (s *Store) Lock(ctx context.Context, wait bool) (unlock func(), err error) {
	return s.lock(ctx, "lock", wait)
}

func (s *Store) lock(ctx context.Context, name string, wait bool) (unlock func(), err error) {
	f, err := s.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	unlock, err = lock(ctx, f, wait)
	if err == nil {
		_ = f.Truncate(0) // Run uses this time as the start. An error affects only Run.
	}
	if by := s.holder(name); errors.Is(err, ErrRunning) && by != "" {
		err = &heldError{by}
	}
	return unlock, err
}

// lock locks a file or directory. If it fails, it closes f.
func lock(ctx context.Context, f *os.File, wait bool) (unlock func(), err error) {
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			err = fmt.Errorf("lock %s: %w", f.Name(), err)
		case !wait:
			err = ErrRunning
		default:
			select {
			case <-time.After(lockPoll):
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		_ = f.Close() // the first error matters
		return nil, err
	}
}

// Together calls f while no other process does so for the same state directory.
func Together(ctx context.Context, stateDir string, f func() error) error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil { // before the first run
		return err
	}
	dir, err := os.Open(stateDir)
	if err != nil {
		return err
	}
	unlock, err := lock(ctx, dir, true)
	if err != nil {
		return err
	}
	defer unlock()
	return f()
}
