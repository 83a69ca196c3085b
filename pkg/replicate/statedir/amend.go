package statedir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Amend replaces the record that Append wrote last by a longer one. If the log does not end with it, Amend fails
// and changes nothing.
func (s *Store) Amend(last, now *Run) (err error) {
	const name = "runs.jsonl"
	old, err := json.Marshal(last)
	if err != nil {
		return err
	}
	line, err := json.Marshal(now)
	if err != nil {
		return err
	}
	f, err := s.open(name, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	old = append(old, '\n')
	at := end - int64(len(old))
	found := make([]byte, len(old))
	if at < 0 || len(line) < len(old)-1 {
		return fmt.Errorf("%s does not end with the record", s.file(name))
	}
	if _, err := f.ReadAt(found, at); err != nil {
		return err
	}
	if !bytes.Equal(found, old) {
		return fmt.Errorf("%s does not end with the record", s.file(name))
	}
	if _, err := f.WriteAt(append(line, '\n'), at); err != nil {
		return err
	}
	return f.Sync()
}
