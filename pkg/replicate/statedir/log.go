package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
)

// maxLog is the size in bytes above which the next append drops the older half of a log. Hourly
// runs need years to reach it.
const maxLog = 32 << 20

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

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Runs returns the last n runs of the log, oldest first.
func (s *Store) Runs(n int) ([]*Run, error) {
	return lastEntries[Run](s, "runs.jsonl", n)
}

// DrillLog returns the last n drills, oldest first.
func (s *Store) DrillLog(n int) ([]*Drill, error) {
	return lastEntries[Drill](s, "drills.jsonl", n)
}

func lastEntries[R any](s *Store, name string, n int) ([]*R, error) {
	text, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*R
	for len(text) > 0 && len(out) < n {
		start := bytes.LastIndexByte(text, '\n') + 1
		if line := text[start:]; len(line) > 0 {
			if r := new(R); decode(line, r) == nil { // skip lines that a crash truncated
				out = append(out, r)
			}
		}
		text = text[:max(start-1, 0)]
	}
	slices.Reverse(out)
	return out, nil
}
