package statedir

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
)

// Files of a store.
const (
	stateFile = "state.json"
	cacheFile = "settled.json"
	drillFile = "drills.json"
)

// Store is the directory of one job.
type Store struct{ dir string }

// Open returns the store of a job, and creates it if it is missing.
func Open(stateDir, job string) (*Store, error) {
	s := &Store{dir: filepath.Join(stateDir, job)}
	err := os.MkdirAll(stateDir, 0o755) // stores of other users are also in it
	if err == nil {
		err = os.MkdirAll(s.dir, 0o750)
	}
	return s, withCommand(err, stateDir, job, os.Geteuid())
}

// withCommand adds a hint to an error of an account that may not create its store.
func withCommand(err error, stateDir, job string, uid int) error {
	if uid == 0 || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return fault.Failf("run once as root: "+CreateCommand(stateDir, job, strconv.Itoa(uid)), "%w", err)
}

// CreateCommand returns the command with which root creates the store of a job of another account, given
// by name or number.
func CreateCommand(stateDir, job, user string) string {
	return shellquote.Join("install", "-d", "-o", user, "-m", "750", filepath.Join(stateDir, job))
}

// Peek returns the store of a job for reading. It creates nothing.
func Peek(stateDir, job string) *Store { return &Store{dir: filepath.Join(stateDir, job)} }

// FullState reads the state of the job and the knowledge about its drills.
func (s *Store) FullState() (*State, error) {
	st, err := s.State()
	if err != nil {
		return nil, err
	}
	d, err := s.Drills()
	if err != nil {
		return nil, err
	}
	st.Drills = *d
	return st, nil
}

// State reads the state of the job. It is empty before the first run.
func (s *Store) State() (*State, error) {
	st := &State{State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}}
	if err := s.load(stateFile, st, "move the file away; the next run recreates it (holds protect the state of absent targets)"); err != nil {
		return nil, err
	}
	st.Job = filepath.Base(s.dir) // a user may own the directory and write another name
	if st.Datasets == nil {
		st.Datasets = map[string]*replicate.DatasetState{}
	}
	return st, nil
}

// Save replaces the state of the job.
func (s *Store) Save(st *State) error { return s.save(stateFile, st) }

// cacheVersion changes with the meaning of UnchangedCache. Other versions are ignored.
const cacheVersion = 1

// UnchangedCache is the cache. It only saves work: if it is missing or damaged, the next run checks all
// datasets.
type UnchangedCache struct {
	Version int `json:"version"`
	// Job is a hash of the job's settings.
	Job string `json:"job"`
	// Datasets are datasets of the source, by name.
	Datasets map[string]*decision.UnchangedCache `json:"datasets"`
}

// UnchangedCache reads the cache. If it is missing, damaged, or has other job settings, it is empty.
func (s *Store) UnchangedCache(j *replicate.Job) *UnchangedCache {
	text, err := json.Marshal(j)
	if err != nil {
		return &UnchangedCache{} // no cache without a hash
	}
	sum := sha256.Sum256(text)
	st := &UnchangedCache{Version: cacheVersion, Job: hex.EncodeToString(sum[:]), Datasets: map[string]*decision.UnchangedCache{}}
	var found UnchangedCache
	if s.load(cacheFile, &found, "") == nil && found.Version == st.Version && found.Job == st.Job {
		maps.Copy(st.Datasets, found.Datasets)
	}
	return st
}

// SaveUnchangedCache replaces the cache.
func (s *Store) SaveUnchangedCache(st *UnchangedCache) error { return s.save(cacheFile, st) }

// Drills reads the knowledge about the job's drills. It is empty before the first drill.
func (s *Store) Drills() (*DrillState, error) {
	d := &DrillState{}
	if err := s.load(drillFile, d, "move the file away; the next drill recreates it"); err != nil {
		return nil, err
	}
	for source, of := range d.Copies {
		for to, c := range of { // a user who owns the directory could use other names
			c.Source, c.To = source, to
		}
	}
	return d, nil
}

// SaveDrill saves known and appends d to the log.
func (s *Store) SaveDrill(d *Drill, known *DrillState) error {
	return errors.Join(s.append(drillLog, d), s.save(drillFile, known))
}

func (s *Store) save(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Replace(s.file(name), append(text, '\n'), 0o640)
}

// open opens a file of the store. It follows no symlink, because root opens files in directories
// of other users.
func (s *Store) open(name string, flags int) (*os.File, error) {
	return os.OpenFile(s.file(name), flags|unix.O_NOFOLLOW, 0o640)
}

// load decodes a record into a value, and leaves it unchanged if there is no record. hint is the remedy for a damaged one.
func (s *Store) load(name string, into any, hint string) error {
	text, most, err := s.read(name, ownLimits().file)
	if err == nil {
		if err = decode(text, most.cost, into); err != nil {
			err = &damagedError{err}
		}
	}
	var damaged *damagedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.As(err, &damaged):
		return fault.Failf(hint, "%s is damaged: %w", s.file(name), err)
	}
	return err
}

// read reads a file of the store of at most size bytes, and returns the limits of its owner.
func (s *Store) read(name string, size int64) ([]byte, limits, error) {
	f, have, most, err := s.openRecord(name)
	if err != nil {
		return nil, most, err
	}
	defer f.Close()
	if size = min(size, most.file); have > size {
		return nil, most, &damagedError{fmt.Errorf("it has %d bytes, more than %d", have, size)}
	}
	text, err := io.ReadAll(io.LimitReader(f, size))
	return text, most, err
}

// openRecord opens a regular file of the store for reading. It returns the size and the limits of its owner.
func (s *Store) openRecord(name string) (f *os.File, size int64, most limits, err error) {
	if f, err = s.open(name, os.O_RDONLY|unix.O_NONBLOCK); err != nil {
		return nil, 0, most, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s was not written by zxfer", f.Name())
	}
	if err != nil {
		return nil, 0, most, errors.Join(err, f.Close())
	}
	if most = foreignLimits(); ours(info.Sys().(*syscall.Stat_t).Uid) {
		most = ownLimits()
	}
	return f, info.Size(), most, nil
}

func (s *Store) file(name string) string { return filepath.Join(s.dir, name) }

// Mailed records the mail about a job's runs.
type Mailed struct {
	Run     time.Time `json:"run"`         // start of the last run that was considered
	At      time.Time `json:"at,omitzero"` // of the last mail
	Failing bool      `json:"failing"`     // a failure was reported, and no success since
}

// Mailed reads the record. It is empty before the first mail, or if it is damaged: then a failure
// is reported again.
func (s *Store) Mailed() (*Mailed, error) {
	m := &Mailed{}
	err := s.load("mail.json", m, "")
	var damaged *damagedError
	if errors.As(err, &damaged) {
		return &Mailed{}, nil
	}
	return m, err
}

// SaveMailed replaces the record. Root's unit writes it for the jobs of other users, which may read
// it.
func (s *Store) SaveMailed(m *Mailed) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return Replace(s.file("mail.json"), append(text, '\n'), 0o644)
}

// Ledger is the state of a job during a run that serves several targets. A change on a host has two parts:
// Expect saves what may be true from now on, and Confirm records the result. If zxfer is killed between
// them, the next run finds the expectation.
type Ledger struct {
	store *Store
	mu    sync.Mutex
	state *State // guarded by mu
}

// Ledger returns the ledger of the job's state.
func (s *Store) Ledger(st *State) *Ledger { return &Ledger{store: s, state: st} }

// Expect changes the state and saves it. After an error, a kill may leave changes that no run knows.
func (l *Ledger) Expect(change func(*State)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.state)
	return l.store.Save(l.state)
}

// Locker returns the lock of the state, for a change that is not a function of it.
func (l *Ledger) Locker() sync.Locker { return &l.mu }

// Read calls f while nothing changes the state.
func (l *Ledger) Read(f func()) { l.Confirm(func(*State) { f() }) }

// Confirm changes the state. The next Expect, or the end of the run, saves it.
func (l *Ledger) Confirm(change func(*State)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l.state)
}
