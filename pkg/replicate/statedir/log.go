package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"zxfer/pkg/budget"
)

// maxLog is the size in bytes above which the next append drops the older half of a log. Hourly
// runs need years to reach it.
const maxLog = 32 << 20

// runLog and drillLog are the names of the logs.
const (
	runLog   = "runs.jsonl"
	drillLog = "drills.jsonl"
)

// Append appends a run to the log and syncs it to disk.
func (s *Store) Append(r *Run) error { return s.append(runLog, r) }

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
	text, _, err := s.read(name, ownLimits().file)
	if err != nil {
		return err
	}
	text = text[len(text)/2:]
	text = text[bytes.IndexByte(text, '\n')+1:]
	return Replace(s.file(name), text, 0o640)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Amend appends a record that replaces the last one, which is of the same run. If zxfer is killed meanwhile, the last
// one remains.
func (s *Store) Amend(r *Run) error { return s.append(runLog, amended{*r, true}) }

// amended is a line of the log of runs.
type amended struct {
	Run
	Amends bool `json:"amends,omitempty"` // the line before it
}

// Runs returns the last n runs of the log, oldest first.
func (s *Store) Runs(n int) (out []*Run, err error) {
	if n <= 0 {
		return nil, nil
	}
	var later amended
	err = entries(s, runLog, func(r *amended) bool {
		if !later.Amends || !later.Started.Equal(r.Started) {
			out = append(out, &r.Run)
		}
		later = *r
		return len(out) < n
	})
	slices.Reverse(out)
	return out, err
}

// DrillLog returns the last n drills, oldest first.
func (s *Store) DrillLog(n int) ([]*Drill, error) { return lastEntries[Drill](s, drillLog, n) }

func lastEntries[R any](s *Store, name string, n int) (out []*R, err error) {
	if n > 0 {
		err = entries(s, name, func(r *R) bool {
			out = append(out, r)
			return len(out) < n
		})
	}
	slices.Reverse(out)
	return out, err
}

// entries calls f for each entry of a log, newest first, until f returns false. It skips lines that a crash truncated. All
// lines together, which another user may have written, may cost as much memory as one record: it returns an error for
// older ones.
func entries[R any](s *Store, name string, f func(*R) bool) error {
	file, size, most, err := s.openRecord(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if longest := ownLimits().file; size > longest {
		return fmt.Errorf("%s has %d bytes, more than %d", s.file(name), size, longest)
	}
	exceeded := false
	err = linesBackward(file, size, maxLog, func(line []byte) bool {
		r, cost := new(R), budget.ObjectCost+budget.Cost(line) // decoding a line that is no entry takes time, too
		if exceeded = cost > most.cost; exceeded {
			return false
		}
		most.cost -= cost
		return decode(line, cost, r) != nil || f(r)
	})
	if exceeded {
		err = errors.Join(err, fmt.Errorf("%s: older entries would need too much memory", s.file(name)))
	}
	return err
}

// blockSize is the size of the blocks in which linesBackward reads a file, in bytes.
const blockSize = 1 << 20

// linesBackward calls f for each line of a file of size bytes, last first, until f returns false. It skips empty lines,
// and lines of more than longest bytes.
func linesBackward(file io.ReaderAt, size int64, longest int, f func(line []byte) bool) error {
	block := make([]byte, min(size, blockSize))
	var rest []byte // the part of a line that starts in a block before
	long := false   // that part is longer than longest, and dropped
	for end := size; end > 0; {
		part := block[:min(end, blockSize)]
		end -= int64(len(part))
		if _, err := file.ReadAt(part, end); err != nil {
			return err
		}
		for newline := bytes.LastIndexByte(part, '\n'); newline >= 0; newline = bytes.LastIndexByte(part, '\n') {
			line := append(part[newline+1:len(part):len(part)], rest...)
			if !long && len(line) > 0 && len(line) <= longest && !f(line) {
				return nil
			}
			part, rest, long = part[:newline], nil, false
		}
		if long = long || len(part)+len(rest) > longest; long {
			part, rest = nil, nil
		}
		rest = slices.Concat(part, rest)
	}
	if !long && len(rest) > 0 {
		f(rest)
	}
	return nil
}

// LastRun returns the last run in the log that was not skipped, or nil.
func (s *Store) LastRun() (last *Run, err error) {
	skipped := 0
	err = entries(s, runLog, func(r *Run) bool {
		if !r.Skipped {
			last = r
			return false
		}
		skipped++
		return skipped < maxSkipped
	})
	return last, err
}

// maxSkipped bounds the skipped runs that LastRun looks through.
const maxSkipped = 1000
