package transfer

import "time"

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
	s.mu.Lock()
	group := s.unsynced
	s.unsynced, s.waiting = nil, 0
	s.mu.Unlock()
	if len(group) == 0 {
		return nil
	}
	if err := s.dst.Sync(); err != nil {
		return &sinkError{err}
	}
	if !s.opt.NoVerify {
		if err := s.dst.DropCache(); err != nil {
			return &sinkError{err}
		}
	}
	if s.journal != nil {
		if err := s.note(group); err != nil {
			return &sinkError{err}
		}
	}
	s.addSpans(group)
	return nil
}

// noteAtOnce bounds the blocks that are handed to the journal at once: a hole
// may have millions.
const noteAtOnce = 1 << 14

// note hands blocks that are stored to the journal.
func (s *store) note(group []span) error {
	var blocks []StoredBlock
	for k, sp := range group {
		s.mu.Lock()
		for i := sp.first; i < sp.first+sp.count; i++ {
			blocks = append(blocks, StoredBlock{i, s.sums[i]})
		}
		s.mu.Unlock()
		if len(blocks) < noteAtOnce && k < len(group)-1 {
			continue
		}
		if err := s.journal.Add(blocks); err != nil {
			return err
		}
		blocks = blocks[:0]
	}
	return nil
}
