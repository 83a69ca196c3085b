package device

import (
	"time"

	"zxfer/pkg/transfer"
)

// A group of blocks is synced, and then noted in the journal and read back,
// after so much time or so many bytes: often enough for a cut to cost little
// and for the read-back to overlap with the copy, seldom enough for a drive to
// write long runs.
const (
	syncEvery = 2 * time.Second
	syncBytes = 256 << 20
)

// syncer syncs groups of blocks until the store is finished or given up.
func (s *store) syncer() {
	defer close(s.synced)
	tick := time.NewTicker(syncEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		case <-s.kick:
		}
		if err := s.sync(); err != nil {
			s.fail(err)
			return
		}
	}
}

// sync stores what was written so far for good.
func (s *store) sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.lost != nil {
		return s.lost
	}
	s.mu.Lock()
	group := s.unsynced
	s.unsynced, s.waiting = nil, 0
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
		// It may have been for any block that was written by now, and the
		// kernel tells of each failure once: a later sync that succeeds says
		// nothing (https://lwn.net/Articles/752063/).
		s.lost = &transfer.TargetError{Err: err}
		return s.lost
	}
	if s.journal != nil {
		if err := s.note(group); err != nil {
			return &transfer.TargetError{Err: err}
		}
	}
	s.addSpans(group)
	return nil
}

// distrust removes a journal that vouches for what is not there.
func (s *store) distrust() {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.journal != nil {
		_ = s.journal.Remove() // what is wrong with the target is reported
		s.journal = nil
	}
}

// note hands blocks that are stored to the journal.
func (s *store) note(group []span) error {
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
