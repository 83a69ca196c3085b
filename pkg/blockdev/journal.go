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

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

// Journal remembers, on the target's host, which blocks of a copy are stored,
// so that a copy that was cut off goes on. Its file holds a header, which says
// of what copy it is, and a record for each block. It may be used by one
// goroutine at a time.
type Journal struct {
	f     *os.File
	path  string
	block int
	size  int64
	have  map[int64]CV
}

// Extent is one block that is stored, and its hash.
type Extent struct {
	Index int64
	Sum   CV
}

// journalHeader is the first line of a journal. All of it must match.
type journalHeader struct {
	Version int    `json:"version"`
	Target  string `json:"target"`
	Source  string `json:"source"`
	Content string `json:"content"` // changes when a source file is written to
	Size    int64  `json:"size"`
	Block   int    `json:"block"`
}

// A record is the index of a block, its hash and the CRC of both.
const (
	journalVersion = 1
	recordSum      = 8
	recordCRC      = recordSum + 32
	recordSize     = recordCRC + 4
)

// StateDir is where journals are kept: /var/lib/zxfer for root, else
// $XDG_STATE_HOME/zxfer, by default ~/.local/state/zxfer.
func StateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/zxfer", nil
	}
	// https://specifications.freedesktop.org/basedir-spec: a relative path is
	// to be ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "zxfer"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", "zxfer"), nil
}

// OpenJournal opens the journal of a copy of src to dst in blocks of that many
// bytes. Reason tells why one that is there is of no use. With create there is
// always a journal, a new one if need be; without, nothing is changed and it
// is nil where there is none. A target file must exist to have a journal.
func OpenJournal(src, dst Facts, block int, create bool) (j *Journal, reason string, err error) {
	dir, err := StateDir()
	if err != nil {
		return nil, "", err
	}
	return openJournal(dir, src, dst, block, create)
}

func openJournal(dir string, src, dst Facts, block int, create bool) (_ *Journal, reason string, err error) {
	want, err := header(src, dst, block)
	if errors.Is(err, os.ErrNotExist) && !create {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	// The name leaves out the inode: a journal of a file that was deleted is
	// found, and refused, under the same name.
	name := sha256.Sum256([]byte(dst.identity()))
	j := &Journal{path: filepath.Join(dir, "device-"+hex.EncodeToString(name[:8])+".journal"),
		block: block, size: src.Size, have: map[int64]CV{}}
	flags := os.O_RDONLY
	if create {
		flags = os.O_RDWR | os.O_CREATE
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, "", err
		}
	}
	if j.f, err = os.OpenFile(j.path, flags, 0o600); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, "", nil
		}
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, j.f.Close())
		}
	}()
	if create {
		if err := lock(j.f, dst.Path); err != nil {
			return nil, "", err
		}
	}
	reason, good, err := j.load(want)
	if err != nil || !create {
		return j, reason, err
	}
	if good == 0 {
		return j, reason, j.begin(want)
	}
	// Cut a torn tail off, so that the next record begins where one may.
	if err := j.f.Truncate(good); err != nil {
		return nil, "", err
	}
	_, err = j.f.Seek(good, io.SeekStart)
	return j, "", err
}

// lock keeps a second copy to the same target from writing this journal. The
// kernel releases it when the process ends.
func lock(f *os.File, target string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fault.Refusef("wait for it to end", "another copy to %s is running", target)
	}
	return err
}

func header(src, dst Facts, block int) (journalHeader, error) {
	h := journalHeader{Version: journalVersion, Target: dst.identity(), Source: src.identity(), Size: src.Size, Block: block}
	if src.Kind == KindFile {
		h.Content = fmt.Sprintf("%d %d", src.Inode, src.ModTime.UnixNano())
	}
	if !dst.IsFile() {
		h.Target += fmt.Sprintf(" size %d", dst.Size)
		return h, nil
	}
	// Facts may be from before the file was created: ask for its inode now.
	var st unix.Stat_t
	if err := unix.Stat(dst.Real, &st); err != nil {
		return h, &os.PathError{Op: "stat", Path: dst.Real, Err: err}
	}
	h.Target += fmt.Sprintf(" inode %d", st.Ino)
	return h, nil
}

// load reads the journal. good is the bytes of it that are, 0 if it is of no
// use.
func (j *Journal) load(want journalHeader) (reason string, good int64, err error) {
	r := bufio.NewReader(j.f)
	line, err := r.ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", 0, err
	}
	if len(line) == 0 {
		return "", 0, nil // just created
	}
	var got journalHeader
	if json.Unmarshal(line, &got) != nil || line[len(line)-1] != '\n' {
		return "its journal is damaged", 0, nil
	}
	if reason := got.differs(want); reason != "" {
		return reason, 0, nil
	}
	good = int64(len(line))
	blocks := (want.Size + int64(want.Block) - 1) / int64(want.Block)
	var rec [recordSize]byte
	for {
		// A record that is torn or damaged ends the journal: what follows was
		// written later.
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return "", good, nil
			}
			return "", 0, err
		}
		index := binary.BigEndian.Uint64(rec[:])
		if crc32.ChecksumIEEE(rec[:recordCRC]) != binary.BigEndian.Uint32(rec[recordCRC:]) || index >= uint64(blocks) {
			return "", good, nil
		}
		good += recordSize
		j.have[int64(index)] = CV(rec[recordSum:recordCRC])
	}
}

// differs says why a journal with header h is not that of the wanted copy.
func (h journalHeader) differs(want journalHeader) string {
	switch {
	case h.Version != want.Version:
		return fmt.Sprintf("its journal is of another version of zxfer (format %d, not %d)", h.Version, want.Version)
	case h.Source != want.Source:
		return fmt.Sprintf("it was a copy of another source (%s)", h.Source)
	case h.Size != want.Size:
		return fmt.Sprintf("the source's size changed from %d to %d", h.Size, want.Size)
	case h.Content != want.Content:
		return "the source was written to since"
	case h.Target != want.Target:
		return "the target is not the one that it wrote to"
	case h.Block != want.Block:
		return fmt.Sprintf("it used blocks of %d bytes; --bs %d resumes it", h.Block, h.Block)
	}
	return ""
}

// begin starts the journal anew.
func (j *Journal) begin(h journalHeader) error {
	head, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := j.f.Truncate(0); err != nil {
		return err
	}
	if _, err := j.f.WriteAt(append(head, '\n'), 0); err != nil {
		return err
	}
	if _, err := j.f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if err := j.f.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

// Stored calls f for every block that is stored, in no order.
func (j *Journal) Stored(f func(index int64, sum CV)) {
	for i, sum := range j.have {
		f(i, sum)
	}
}

// Blocks is how many those are.
func (j *Journal) Blocks() int { return len(j.have) }

// Add notes blocks that are stored for good: the target was synced after they
// were written and before this call. When it returns, so is the note.
func (j *Journal) Add(blocks []Extent) error {
	out := make([]byte, 0, len(blocks)*recordSize)
	for _, b := range blocks {
		start := len(out)
		out = binary.BigEndian.AppendUint64(out, uint64(b.Index))
		out = append(out, b.Sum[:]...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[start:]))
	}
	if _, err := j.f.Write(out); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	if err := j.f.Sync(); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	for _, b := range blocks {
		j.have[b.Index] = b.Sum
	}
	return nil
}

// Wrote tells whether everything by which a target is recognised was put there
// by the interrupted copy itself: the blocks that hold the signatures are noted
// and still hold what was noted. If not, somebody has put the target to use
// since, and it needs consent like any other.
func (j *Journal) Wrote(dst Facts) (bool, error) {
	if j.Blocks() == 0 || dst.Unprobed != "" {
		return false, nil
	}
	h, err := openHandle(dst, unix.O_RDONLY|unix.O_NONBLOCK, false)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	buf := AlignedBuffer(j.block)
	for _, s := range dst.Signatures {
		at := s.Offset
		for _, p := range dst.Partitions {
			if p.Name == s.Device {
				at += p.Start
			}
		}
		if at >= j.size {
			return false, nil // the copy never writes there
		}
		i := at / int64(j.block)
		want, noted := j.have[i]
		if !noted {
			return false, nil
		}
		start := i * int64(j.block)
		p := buf[:min(int64(j.block), j.size-start)]
		if n, err := h.readAt(p, start); n < len(p) {
			return false, err
		}
		if LeafHash(p, start, j.size) != want {
			return false, nil
		}
	}
	return true, nil
}

// Remove deletes the journal: the copy is complete.
func (j *Journal) Remove() error {
	err := os.Remove(j.path)
	if err == nil {
		err = syncDir(filepath.Dir(j.path))
	}
	return errors.Join(err, j.Close())
}

// Close keeps it for the next try.
func (j *Journal) Close() error {
	// Closing alone does not unlock while a child that is just being started
	// still has a copy of the descriptor.
	err := unix.Flock(int(j.f.Fd()), unix.LOCK_UN)
	return errors.Join(err, j.f.Close())
}
