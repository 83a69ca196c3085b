package blockdev

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// Journal remembers which blocks of a target are stored, across runs.
type Journal struct {
	f    *os.File
	path string
	have map[int64]CV
}

// Extent is one block of a journal.
type Extent struct {
	Index int64
	Sum   CV
}

// journalKey is what a journal is of.
type journalKey struct {
	Version int    `json:"version"`
	Target  string `json:"target"`
	Source  string `json:"source"`
	Size    int64  `json:"size"`
	Block   int    `json:"block"`
}

// identity is what tells a device or file from others of the same name.
func (f Facts) identity() string {
	switch {
	case f.WWN != "":
		return "wwn:" + f.WWN
	case f.Serial != "":
		return "serial:" + f.Serial
	}
	return f.Kind + ":" + f.Real
}

// content changes when a file is written to; of devices it is not known.
func (f Facts) content() string {
	if f.Kind == "file" {
		return fmt.Sprintf("%s %d %d", f.identity(), f.Size, f.ModTime.UnixNano())
	}
	return fmt.Sprintf("%s %d", f.identity(), f.Size)
}

func stateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/zxfer", nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "zxfer"), nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state", "zxfer"), err
}

const recordSize = 8 + 32 + 4

func key(src, dst Facts, block int) (journalKey, string, error) {
	kind := dst
	if kind.Kind == "missing" {
		kind.Kind = "file" // it is there the next time
	}
	k := journalKey{1, kind.identity(), src.content(), src.Size, block}
	dir, err := stateDir()
	sum := sha256.Sum256([]byte(k.Target))
	return k, filepath.Join(dir, "device-"+hex.EncodeToString(sum[:8])), err
}

// OpenJournal opens the journal of a copy, or begins one. reason tells why
// one that was there is of no use.
func OpenJournal(src, dst Facts, block int, create bool) (j *Journal, reason string, err error) {
	want, path, err := key(src, dst, block)
	if err != nil {
		return nil, "", err
	}
	j = &Journal{path: path, have: map[int64]CV{}}
	flags := os.O_RDWR | os.O_APPEND
	if create {
		flags |= os.O_CREATE
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, "", err
		}
	}
	if j.f, err = os.OpenFile(path, flags, 0o600); err != nil {
		if errors.Is(err, os.ErrNotExist) && !create {
			return nil, "", nil
		}
		return nil, "", err
	}
	r := bufio.NewReader(j.f)
	line, rerr := r.ReadBytes('\n')
	var got journalKey
	good := int64(len(line))
	switch {
	case len(line) == 0:
	case rerr != nil || json.Unmarshal(line, &got) != nil:
		reason = "the journal is damaged"
	case got.Source != want.Source:
		reason = "the source changed since"
	case got != want:
		reason = "the journal is of another copy"
	default:
		var rec [recordSize]byte
		for {
			if _, err := io.ReadFull(r, rec[:]); err != nil {
				break
			}
			if crc32.ChecksumIEEE(rec[:40]) != binary.BigEndian.Uint32(rec[40:]) {
				break
			}
			good += recordSize
			j.have[int64(binary.BigEndian.Uint64(rec[:]))] = CV(rec[8:40])
		}
		if create {
			return j, "", j.f.Truncate(good)
		}
		return j, "", nil
	}
	if !create {
		return j, reason, nil
	}
	head, err := json.Marshal(want)
	if err == nil {
		err = j.f.Truncate(0)
	}
	if err == nil {
		_, err = j.f.Write(append(head, '\n'))
	}
	return j, reason, err
}

// Stored calls f for every block.
func (j *Journal) Stored(f func(int64, CV)) {
	for i, cv := range j.have {
		f(i, cv)
	}
}

// Blocks is how many there are.
func (j *Journal) Blocks() int { return len(j.have) }

// Add appends and syncs.
func (j *Journal) Add(blocks []Extent) error {
	out := make([]byte, 0, len(blocks)*recordSize)
	for _, b := range blocks {
		start := len(out)
		out = binary.BigEndian.AppendUint64(out, uint64(b.Index))
		out = append(out, b.Sum[:]...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[start:]))
	}
	if _, err := j.f.Write(out); err != nil {
		return err
	}
	return j.f.Sync()
}

// Remove removes the file.
func (j *Journal) Remove() error { return errors.Join(os.Remove(j.path), j.f.Close()) }

// Close closes it.
func (j *Journal) Close() error { return j.f.Close() }
