package device

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
	"iter"
	"math"
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
	grid
	f    *os.File
	path string
	good int64 // bytes of the file, the header and whole records
	// found are the signatures that were on the target when the copy began.
	found []string
	// sums are those of the blocks that were noted when it was opened, of all
	// others zero; nil where there are none. noted is how many.
	sums  []Sum
	noted int
}

// journalHeader is the first line of a journal. All of it must match.
type journalHeader struct {
	Version int    `json:"version"`
	Target  string `json:"target"`
	Source  string `json:"source"`
	Content string `json:"content"` // changes when a source file is written to
	Size    int64  `json:"size"`
	Block   int    `json:"block"`
	Quick   bool   `json:"quick,omitempty"` // of the hashes
	// Found need not match: it is what was on the target before.
	Found []string `json:"found,omitempty"`
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

// What a journal is opened for.
type journalUse int

const (
	lookAt  journalUse = iota // nothing is changed; there may be none
	goOn                      // with what it notes, where that is of use
	beginIt                   // whatever it notes
)

// OpenJournal opens the journal of a copy of src to dst, cut like that. Reason
// tells why one that is there is of no use. It is nil where there is none that
// could be looked at. A target file must exist to have a journal.
func OpenJournal(src, dst Facts, cut Cut, use journalUse) (j *Journal, reason string, err error) {
	dir, err := StateDir()
	if err != nil {
		return nil, "", err
	}
	return openJournal(dir, src, dst, cut, use)
}

func openJournal(dir string, src, dst Facts, cut Cut, use journalUse) (_ *Journal, reason string, err error) {
	want, err := header(src, dst, cut)
	if errors.Is(err, os.ErrNotExist) && use == lookAt {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	// The name leaves out the inode: a journal of a file that was deleted is
	// found, and refused, under the same name.
	name := sha256.Sum256([]byte(dst.identity()))
	j := &Journal{path: filepath.Join(dir, "device-"+hex.EncodeToString(name[:8])+".journal"), grid: newGrid(src.Size, cut)}
	flags := os.O_RDONLY
	if use != lookAt {
		flags = os.O_RDWR | os.O_CREATE
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, "", fault.Refusef("make it writable, or set XDG_STATE_HOME to a directory that is", "directory of journals: %w", err)
		}
	}
	j.f, err = os.OpenFile(j.path, flags, 0o600)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", err
	}
	if reason, err = j.open(dst.Path, want, use); err != nil {
		return nil, "", errors.Join(err, j.f.Close())
	}
	return j, reason, nil
}

// open reads what is there, and begins the journal anew where that is of no use.
func (j *Journal) open(target string, want journalHeader, use journalUse) (reason string, err error) {
	if use != lookAt {
		// Another copy to the same target must not write it. The kernel releases
		// this when the process ends.
		err := unix.Flock(int(j.f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fault.Refusef("wait for it to end", "another copy to %s is running", target)
		}
		if err != nil {
			return "", err
		}
	}
	if use != beginIt {
		reason, err = j.load(want, use)
	}
	switch {
	case err != nil || use == lookAt:
		return reason, err
	case j.good == 0:
		return reason, j.begin(want)
	}
	// Cut a torn tail off, so that the next record begins where one may.
	return "", j.f.Truncate(j.good)
}

func header(src, dst Facts, cut Cut) (journalHeader, error) {
	h := journalHeader{Version: journalVersion, Target: dst.identity(), Source: src.identity(), Size: src.Size, Block: cut.Block, Quick: cut.Quick}
	for _, s := range dst.Signatures {
		h.Found = append(h.Found, s.mark())
	}
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

// load reads the journal and notes what it is good for. Who only looks at one of
// other hashes gets to know it by its cut.
func (j *Journal) load(want journalHeader, use journalUse) (reason string, err error) {
	line, err := bufio.NewReader(j.f).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if len(line) == 0 {
		return "", nil // just created
	}
	var got journalHeader
	if json.Unmarshal(line, &got) != nil || line[len(line)-1] != '\n' {
		return "its journal is damaged", nil
	}
	if reason := got.differs(want); reason != "" {
		return reason, nil
	}
	if got.Quick != want.Quick && use != lookAt {
		return "it has other hashes", nil
	}
	j.cut.Quick = got.Quick
	j.good, j.found = int64(len(line)), got.Found
	return "", j.records()
}

// records reads those of the file from j.good on. One that is torn or damaged
// ends the journal: what follows was written later.
func (j *Journal) records() error {
	r := bufio.NewReaderSize(io.NewSectionReader(j.f, j.good, math.MaxInt64-j.good), 1<<16)
	var rec [recordSize]byte
	for ; ; j.good += recordSize {
		if _, err := io.ReadFull(r, rec[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			}
			return err
		}
		i := binary.BigEndian.Uint64(rec[:])
		if crc32.ChecksumIEEE(rec[:recordCRC]) != binary.BigEndian.Uint32(rec[recordCRC:]) || i >= uint64(j.count) {
			return nil
		}
		if j.sums == nil {
			j.sums = make([]Sum, j.count)
		}
		if j.sums[i] == (Sum{}) {
			j.noted++
		}
		j.sums[i] = Sum(rec[recordSum:recordCRC])
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
		return fmt.Sprintf("it used blocks of %d bytes; {{bs %d}} resumes it", h.Block, h.Block)
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
	j.good, j.found = int64(len(head))+1, h.Found
	if err := j.f.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

// Stored hands over what was noted when it was opened: the hashes by block, zero
// where there is none.
func (j *Journal) Stored() (sums []Sum) {
	sums, j.sums = j.sums, nil
	return sums
}

// Add notes blocks that are stored for good, with their hashes: the target was
// synced after they were written and before this call. When it returns, so is the
// note.
func (j *Journal) Add(blocks iter.Seq2[int64, Sum]) error {
	w := bufio.NewWriterSize(io.NewOffsetWriter(j.f, j.good), 1<<16)
	end := j.good
	for i, sum := range blocks {
		var rec [recordSize]byte
		binary.BigEndian.PutUint64(rec[:], uint64(i))
		copy(rec[recordSum:], sum[:])
		binary.BigEndian.PutUint32(rec[recordCRC:], crc32.ChecksumIEEE(rec[:recordCRC]))
		_, _ = w.Write(rec[:]) // Flush tells
		end += recordSize
	}
	err := w.Flush()
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.good = end
	return nil
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
