package statedir

import "sync"

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
