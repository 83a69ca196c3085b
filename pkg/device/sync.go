package device

import (
	"time"

	"zxfer/pkg/transfer"
)

// The syncer syncs blocks at these intervals. Then they are recorded in the journal
// and read back. Short intervals lose little on interruption and overlap the
// read-back with the copy. Long intervals let drives write long runs.
const (
	syncEvery = 2 * time.Second
	syncBytes = 256 << 20
)

// syncer syncs groups of blocks until the store is stopped.
func (s *store) syncer() {
	defer close(s.synced)
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		case <-s.syncNow:
		}
		if err := s.sync(); err != nil {
			s.fail(err)
			return
		}
	}
}

// sync stores all blocks written so far, records them and passes them to the
// verifiers.
func (s *store) sync() error {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.syncErr != nil {
		return s.syncErr
	}
	s.mu.Lock()
	group := s.unsynced
	s.unsynced, s.unsyncedBytes = nil, 0
	s.mu.Unlock()
	if len(group) == 0 {
		return nil
	}
	s.flush.Start()
	err := s.dst.Sync()
	if err == nil && !s.opt.NoVerify {
		err = s.dst.DropCache()
	}
	s.flush.Stop()
	if err != nil {
		// Any block written so far may be lost. The kernel reports each failure
		// only once, so a later successful sync proves nothing
		// (https://lwn.net/Articles/752063/).
		s.syncErr = &transfer.TargetError{Err: err}
		return s.syncErr
	}
	if s.journal != nil {
		if err := s.record(group); err != nil {
			return &transfer.TargetError{Err: err}
		}
	}
	s.addSpans(group)
	return nil
}

// dropJournal removes a journal that lists blocks which are not stored.
func (s *store) dropJournal() {
	s.syncMu.Lock()
	defer s.syncMu.Unlock()
	if s.journal != nil {
		_ = s.journal.Remove() // the corruption itself is reported
		s.journal = nil
	}
}

// record adds stored blocks to the journal.
func (s *store) record(group []span) error {
	return s.journal.Add(func(yield func(int64, Sum) bool) {
		for _, sp := range group {
			for i := sp.first; i < sp.first+sp.count; i++ {
				s.mu.Lock()
				sum := s.sums[i]
				s.mu.Unlock()
				if !yield(i, sum) {
					return
				}
			}
		}
	})
}
