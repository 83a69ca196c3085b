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
	"slices"

	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
	"zxfer/pkg/filelock"
)

// Journal records, on the target's host, which blocks of a copy are stored, so that
// an interrupted copy can resume. The file holds a header that identifies the copy,
// and one record per block. A Journal must not be used concurrently.
type Journal struct {
	grid
	f    *os.File
	path string
	good int64 // length of the header and the complete records, in bytes
	// oldSignatures are those on the target when the copy started.
	oldSignatures []string
	// sums are indexed by block and zero for unrecorded blocks, or nil if there are
	// no records. recorded is the number of recorded blocks.
	sums     []Sum
	recorded int
}

// journalHeader is the first line of a journal. Except for Found, it must match the
// copy.
type journalHeader struct {
	Version int    `json:"version"`
	Target  string `json:"target"`
	Source  string `json:"source"`
	Content string `json:"content"` // changes when a source file is written to
	Size    int64  `json:"size"`
	Block   int    `json:"block"`
	Quick   bool   `json:"quick,omitempty"` // of the sums
	// Found holds the target's signatures when the copy started.
	Found []string `json:"found,omitempty"`
}

// A record holds the index of a block, its sum and the CRC of both.
const (
	journalVersion = 1
	recordSum      = 8
	recordCRC      = recordSum + 32
	recordSize     = recordCRC + 4
)

// StateDir returns the directory of journals: /var/lib/zxfer for root, otherwise
// $XDG_STATE_HOME/zxfer, by default ~/.local/state/zxfer.
func StateDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/zxfer", nil
	}
	// Relative paths are ignored:
	// https://specifications.freedesktop.org/basedir-spec
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "zxfer"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return filepath.Join(home, ".local", "state", "zxfer"), nil
}

// journalUse is the purpose of opening a journal.
type journalUse int

const (
	journalRead   journalUse = iota // change nothing; the journal may be missing
	journalResume                   // reuse the records if they are valid
	journalNew                      // discard old records
)

// OpenJournal opens the journal of a copy of src to dst with this cut. If an
// existing journal cannot be used, reason explains why. j is nil if there is no journal
// to read. A target file must exist already, except for journalRead.
func OpenJournal(src, dst Facts, cut BlockHash, use journalUse) (j *Journal, reason string, err error) {
	dir, err := StateDir()
	if err != nil {
		return nil, "", err
	}
	return openJournal(dir, src, dst, cut, use)
}

func openJournal(dir string, src, dst Facts, cut BlockHash, use journalUse) (_ *Journal, reason string, err error) {
	want, err := header(src, dst, cut)
	if errors.Is(err, os.ErrNotExist) && use == journalRead {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	// The name excludes the inode, so the journal of a deleted file is found and
	// rejected.
	name := sha256.Sum256([]byte(dst.identity()))
	j := &Journal{path: filepath.Join(dir, "device-"+hex.EncodeToString(name[:8])+".journal"), grid: newGrid(src.Size, cut)}
	flags := os.O_RDONLY
	if use != journalRead {
		flags = os.O_RDWR | os.O_CREATE
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, "", fault.Refusef("make it writable, or set XDG_STATE_HOME to a writable directory", "journal directory: %w", err)
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
		return nil, "", errors.Join(err, j.Close())
	}
	return j, reason, nil
}

// open reads the journal. If its records cannot be used, and use is not journalRead,
// it empties the journal.
func (j *Journal) open(target string, want journalHeader, use journalUse) (reason string, err error) {
	if use != journalRead {
		// Keeps out other copies to the target. The kernel releases the lock when
		// the process ends.
		err := filelock.Try(j.f)
		if errors.Is(err, filelock.ErrLocked) {
			err = fault.Refusef("wait until it ends", "another copy to %s is running", target)
		}
		if err != nil {
			return "", err
		}
	}
	if use != journalNew {
		reason, err = j.load(want, use)
	}
	switch {
	case err != nil || use == journalRead:
		return reason, err
	case j.good == 0:
		return reason, j.create(want)
	}
	// Remove an incomplete record, so that new records are aligned.
	return "", j.f.Truncate(j.good)
}

func header(src, dst Facts, cut BlockHash) (journalHeader, error) {
	h := journalHeader{Version: journalVersion, Target: dst.identity(), Source: src.identity(), Size: src.Size, Block: cut.Block, Quick: cut.Quick}
	for _, s := range dst.Signatures {
		h.Found = append(h.Found, s.key())
	}
	if src.Kind == KindFile {
		h.Content = fmt.Sprintf("%d %d", src.Inode, src.ModTime.UnixNano())
	}
	if !dst.IsFile() {
		h.Target += fmt.Sprintf(" size %d", dst.Size)
		return h, nil
	}
	// The facts may predate the creation of the file.
	var st unix.Stat_t
	if err := unix.Stat(dst.Real, &st); err != nil {
		return h, &os.PathError{Op: "stat", Path: dst.Real, Err: err}
	}
	h.Target += fmt.Sprintf(" inode %d", st.Ino)
	return h, nil
}

// load reads and checks the journal. If use is journalRead, it accepts other sums
// and sets j.cut.Quick to the journal's.
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
	if got.Quick != want.Quick && use != journalRead {
		return "its hashes have another algorithm", nil
	}
	j.cut.Quick = got.Quick
	j.good, j.oldSignatures = int64(len(line)), got.Found
	return "", j.readRecords()
}

// readRecords reads the records that start at j.good. It stops at the first
// incomplete or damaged record, and ignores later ones.
func (j *Journal) readRecords() error {
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
			j.recorded++
		}
		j.sums[i] = Sum(rec[recordSum:recordCRC])
	}
}

// differs returns why header h does not match the wanted copy, or "".
func (h journalHeader) differs(want journalHeader) string {
	switch {
	case h.Version != want.Version:
		return fmt.Sprintf("its journal has another format (%d, expected %d)", h.Version, want.Version)
	case h.Source != want.Source:
		return fmt.Sprintf("it copied another source (%s)", h.Source)
	case h.Size != want.Size:
		return fmt.Sprintf("the source's size changed from %d to %d", h.Size, want.Size)
	case h.Content != want.Content:
		return "the source was modified since"
	case h.Target != want.Target:
		return "the target is another device than before"
	case h.Block != want.Block:
		return fmt.Sprintf("it used blocks of %d bytes; {{bs %d}} resumes it", h.Block, h.Block)
	}
	return ""
}

// create writes a journal without records.
func (j *Journal) create(h journalHeader) error {
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
	j.good, j.oldSignatures = int64(len(head))+1, h.Found
	if err := j.f.Sync(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(j.path))
}

// Stored returns the recorded sums by block, zero for unrecorded blocks. It returns
// them only once.
func (j *Journal) Stored() (sums []Sum) {
	sums, j.sums = j.sums, nil
	return sums
}

// Add records stored blocks durably. The caller must have synced the target after
// writing them.
func (j *Journal) Add(blocks iter.Seq2[int64, Sum]) error {
	w := bufio.NewWriterSize(io.NewOffsetWriter(j.f, j.good), 1<<16)
	end := j.good
	for i, sum := range blocks {
		var rec [recordSize]byte
		binary.BigEndian.PutUint64(rec[:], uint64(i))
		copy(rec[recordSum:], sum[:])
		binary.BigEndian.PutUint32(rec[recordCRC:], crc32.ChecksumIEEE(rec[:recordCRC]))
		_, _ = w.Write(rec[:]) // Flush returns the error
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

// Remove deletes the journal of a complete copy and closes it.
func (j *Journal) Remove() error {
	err := os.Remove(j.path)
	if err == nil {
		err = syncDir(filepath.Dir(j.path))
	}
	return errors.Join(err, j.Close())
}

// Close closes the journal and keeps its file for the next attempt.
func (j *Journal) Close() error { return filelock.Close(j.f) }

// samples is the approximate number of recorded blocks that Check reads.
const samples = 16

// Check compares the target with the journal. usable reports that the copy can
// resume: the sampled blocks and all recorded blocks with signatures are intact,
// and every other signature existed when the copy started.
//
// wrote reports that, in addition, the interrupted copy itself wrote every
// signature on the target. Only such a target needs no consent. A copy writes the
// blocks that identify a target last, so an interrupted copy has rarely written
// signatures.
func (j *Journal) Check(dst Facts) (usable, wrote bool, err error) {
	if dst.Unprobed != "" {
		return false, false, nil
	}
	if j.recorded == 0 {
		// The inode matches, but another program may have filled the file. In a
		// file of this copy, the first block is still missing.
		if dst.Kind != KindFile || len(dst.Signatures) > 0 {
			return false, false, nil
		}
		wrote, err = j.checkBlocks(dst, []int64{0}, func(_ int64, p []byte) bool { return IsZero(p) })
		return false, wrote, err
	}
	wanted := j.sampleBlocks()
	wrote = true
	for _, s := range dst.Signatures {
		at := s.Offset
		for _, p := range dst.Partitions {
			if p.Name == s.Device {
				at += p.Start
			}
		}
		if i := at / j.block; at < j.size && j.sums[i] != (Sum{}) {
			wanted = append(wanted, i)
			continue
		}
		wrote = false
		if !slices.Contains(j.oldSignatures, s.key()) {
			return false, false, nil
		}
	}
	usable, err = j.checkBlocks(dst, wanted, func(i int64, p []byte) bool {
		return j.sum(i, p[:min(int64(len(p)), j.length(i))]) == j.sums[i]
	})
	return usable, usable && wrote, err
}

// key identifies a signature while the copy overwrites its locations one by one.
func (s Signature) key() string { return s.Device + " " + s.Type + " " + s.UUID }

// sampleBlocks returns evenly spaced recorded blocks, including the last one.
func (j *Journal) sampleBlocks() []int64 {
	step := max(1, j.recorded/samples)
	out := make([]int64, 0, 2*samples)
	left := j.recorded
	for i, sum := range j.sums {
		if sum == (Sum{}) {
			continue
		}
		if left--; left%step == 0 {
			out = append(out, int64(i))
		}
	}
	return out
}

// checkBlocks reports whether ok holds for all of these blocks of the target. It
// returns false for unreadable blocks.
func (j *Journal) checkBlocks(dst Facts, blocks []int64, ok func(i int64, p []byte) bool) (bool, error) {
	h, err := openHandle(dst, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer h.f.Close()
	buf := AlignedBuffer(int(j.block))
	for _, i := range blocks {
		start := i * j.block
		p := buf[:max(0, min(j.block, dst.Size-start))] // the source may be smaller than the target
		if n, _ := h.readAt(p, start); n < len(p) || !ok(i, p) {
			return false, nil
		}
	}
	return true, nil
}
