package blockdev

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Journal remembers which blocks of a target are stored, across runs.
//
// Only blocks that were synced are in it. It lies in the state directory of the
// target's host: /var/lib/zxfer for root, else $XDG_STATE_HOME/zxfer.
type Journal struct {
	f    *os.File // nil for one that was only looked at
	path string
	have map[int64]CV

	Begun   bool      // by an earlier copy of the same source onto the same target
	Changed time.Time // when something was last added
}

// StoredBlock is one block of a journal.
type StoredBlock struct {
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

// stateDir is where journals are.
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

// recordSize is the length of a record: index, chaining value, CRC-32 of both.
const recordSize = 8 + 32 + 4

// journalOf is the key and the file of a copy's journal: one for each target.
func journalOf(src, dst Facts, block int) (journalKey, string, error) {
	k := journalKey{1, dst.Identity(), src.content(), src.Size, block}
	dir, err := stateDir()
	sum := sha256.Sum256([]byte(k.Target))
	return k, filepath.Join(dir, "device-"+hex.EncodeToString(sum[:8])), err
}

// LookJournal reads the journal of a copy; nil where there is none. reason
// tells why one that is there is of no use. Nothing is changed.
func LookJournal(src, dst Facts, block int) (j *Journal, reason string, err error) {
	want, path, err := journalOf(src, dst, block)
	if err != nil {
		return nil, "", err
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	j = &Journal{path: path}
	_, reason, err = j.read(f, want)
	return j, reason, err
}

// OpenJournal opens the journal of a copy to be added to, or begins it: also
// where the one that is there is of no use, or fresh asks for it.
func OpenJournal(src, dst Facts, block int, fresh bool) (j *Journal, err error) {
	want, path, err := journalOf(src, dst, block)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	j = &Journal{path: path}
	if j.f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, err
	}
	good, reason, err := j.read(j.f, want)
	if err == nil && (fresh || reason != "" || good == 0) {
		j.have = map[int64]CV{}
		err = j.begin(want)
	} else if err == nil {
		err = j.f.Truncate(good) // a record that was torn
	}
	if err != nil {
		return nil, errors.Join(err, j.f.Close())
	}
	return j, nil
}

// begin writes a new header.
func (j *Journal) begin(k journalKey) error {
	head, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	if _, err := j.f.Write(append(head, '\n')); err != nil {
		return err
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(j.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// read takes in what a journal's file holds, up to the first record that is
// not whole, and returns how many bytes that is.
func (j *Journal) read(f *os.File, want journalKey) (good int64, reason string, err error) {
	j.have = map[int64]CV{}
	st, err := f.Stat()
	if err != nil {
		return 0, "", err
	}
	j.Changed = st.ModTime()
	r := bufio.NewReader(f)
	line, rerr := r.ReadBytes('\n')
	var got journalKey
	switch {
	case len(line) == 0:
		return 0, "", nil
	case rerr != nil || json.Unmarshal(line, &got) != nil:
		return 0, "its journal is damaged", nil
	case got.Target == want.Target && got.Block == want.Block && got.Source != want.Source:
		return 0, "the source is not what it was", nil
	case got != want:
		return 0, "it was another copy", nil
	}
	j.Begun = true
	good = int64(len(line))
	var rec [recordSize]byte
	for {
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			return good, "", nil
		}
		if crc32.ChecksumIEEE(rec[:40]) != binary.BigEndian.Uint32(rec[40:]) {
			return good, "", nil
		}
		good += recordSize
		j.have[int64(binary.BigEndian.Uint64(rec[:]))] = CV(rec[8:40])
	}
}

// Holds makes sure that the target still holds what the journal says, by some
// of its blocks: somebody may have used the device since.
func (j *Journal) Holds(ctx context.Context, src, dst Facts, block int) (bool, error) {
	t, err := OpenSource(ctx, dst, Options{})
	if err != nil {
		return false, err
	}
	defer t.Close()
	var indexes []int64
	for i := range j.have {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	step := max(1, len(indexes)/sampled)
	p := AlignedBuffer(block)
	for k := 0; k < len(indexes); k += step {
		off := indexes[k] * int64(block)
		n := min(int64(block), src.Size-off)
		if n <= 0 {
			return false, nil
		}
		if got, err := t.ReadAt(p[:n], off); int64(got) < n {
			return false, ignoreEnd(err)
		}
		if LeafHash(p[:n], off, src.Size) != j.have[indexes[k]] {
			return false, nil
		}
	}
	return true, nil
}

// sampled blocks, the first among them, are compared by Holds.
const sampled = 16

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Stored calls f for every block, in no order.
func (j *Journal) Stored(f func(int64, CV)) {
	for i, cv := range j.have {
		f(i, cv)
	}
}

// Blocks is how many are stored.
func (j *Journal) Blocks() int { return len(j.have) }

// Add notes blocks; they must have been synced. It returns once the journal is
// stored, too.
func (j *Journal) Add(blocks []StoredBlock) error {
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

// Remove forgets the copy.
func (j *Journal) Remove() error { return errors.Join(os.Remove(j.path), j.f.Close()) }

// Close closes it.
func (j *Journal) Close() error { return j.f.Close() }
