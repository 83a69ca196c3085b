package statedir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/decide"
)

const pauseFile = "pause.json"

// All returns the store of the records that concern all jobs of a state directory: the pause.
func All(stateDir string) *Store { return &Store{dir: filepath.Clean(stateDir)} }

// Pause reads the last pause. It returns nil if there was none. The file is separate from the
// state, so that it can be written during a run, and read if the state is damaged.
func (s *Store) Pause() (*decide.Pause, error) {
	text, most, err := s.read(pauseFile, maxSmall)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	p := &decide.Pause{}
	if err == nil {
		err = decode(text, most.cost, p)
	}
	if err != nil {
		return nil, fault.Failf("delete the file, then pause the job again if necessary", "%s: cannot read the pause: %w", s.file(pauseFile), causeOf(err))
	}
	p.Clean()
	return p, nil
}

// SavePause replaces the pause. All users may read it, if they may read the directory: root can
// pause the job of another user.
func (s *Store) SavePause(p *decide.Pause) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return Replace(s.file(pauseFile), append(text, '\n'), 0o644)
}

// Paused returns the pause of a job that counts at a time: its own, or that of all jobs. It
// returns nil if there was none.
func Paused(stateDir, job string, now time.Time) (*decide.Pause, error) {
	own, err := Peek(stateDir, job).Pause()
	if err != nil {
		return nil, err
	}
	all, err := All(stateDir).Pause()
	if err != nil {
		return nil, err
	}
	if own != nil {
		own.All = false // a user may own the directory
	}
	if all != nil {
		all.All = true
	}
	return decide.Stronger(own, all, now), nil
}

// RunCommand returns the command that stops the run in progress, with a description of the run, or
// "" if there is none. The next run resumes interrupted transfers.
func (s *Store) RunCommand(unit string) string {
	pid := s.owner("lock")
	args := commandOf(pid)
	if pid == 0 || !isRun(args) {
		return ""
	}
	for _, a := range args {
		if a == "--service" {
			return "systemctl stop " + unit
		}
	}
	return fmt.Sprintf("kill %d", pid)
}

// maxSmall bounds the file of a pause, in bytes.
const maxSmall = 64 << 10
