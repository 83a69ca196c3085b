package device

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// VolumeSnapshot is a snapshot of a ZFS volume. The zero value is none.
type VolumeSnapshot struct {
	Dataset string `json:"dataset,omitempty"`
	Name    string `json:"name,omitempty"` // without dataset and "@"
	GUID    uint64 `json:"guid,omitempty,string"`
	Size    int64  `json:"size,omitempty"`  // of the volume, in bytes
	Block   int    `json:"block,omitempty"` // volblocksize, in bytes
}

// String returns the full name of the snapshot.
func (s VolumeSnapshot) String() string { return s.Dataset + "@" + s.Name }

// VolumeCopy names the snapshot of a volume that a device or image file holds, according to its
// record.
type VolumeCopy struct {
	// Held is the last snapshot that was stored completely. GUID is 0 if a full copy is incomplete.
	Held VolumeSnapshot `json:"held"`
	// Applying is a snapshot that is stored in part, on top of Held. GUID is 0 if there is none.
	Applying VolumeSnapshot `json:"applying,omitzero"`
	// Changed is the reason why the target does not hold this any more, or "".
	Changed string `json:"changed,omitempty"`
}

// volumeRecord is the record of a VolumeCopy: a file next to an image, and a file in the state
// directory for a device. It is replaced atomically.
type volumeRecord struct {
	Version int    `json:"version"`
	State   string `json:"state"` // complete or applying, for readers of the file
	VolumeCopy
	// Head has the hashes of the first headSize bytes, by units, before Applying. NextHead has those
	// after it. A copy writes the head last, so each unit has one of both hashes.
	Head     []byte `json:"head"`
	NextHead []byte `json:"next_head,omitempty"`
	// Data is the dataMap of Held.
	Data []byte `json:"data,omitempty"`

	// Inode identifies an incomplete image file, and ModTime (in nanoseconds) a complete one.
	Inode   uint64 `json:"inode,omitempty"`
	ModTime int64  `json:"mod_time,omitempty"`
	// Device identifies a device. Written counts the sectors written to it since Boot, when it was
	// complete.
	Device  string `json:"device,omitempty"`
	Boot    string `json:"boot,omitempty"`
	Written int64  `json:"written,omitempty"`
}

const (
	volumeRecordVersion = 1
	maxVolumeRecord     = 64 << 10 // bytes

	volumeComplete = "complete"
	volumeApplying = "applying"

	// headSize is the length of the head in bytes. It covers the headers of file systems and
	// partition tables, also of a first partition at 1 MiB.
	headSize = 2 << 20
	headUnit = 4096 // a killed process or a power failure leaves such a unit old or new, in bytes
	headHash = 8    // length of a hash of a unit, in bytes
)

// RecordSuffix is the end of the name of an image file's record.
const RecordSuffix = ".zxfer"

// volumeRecordPath returns the name of the record of a device or file.
func volumeRecordPath(f Facts) (string, error) {
	if f.IsFile() {
		return f.Real + RecordSuffix, nil
	}
	dir, err := StateDir()
	if err != nil {
		return "", err
	}
	name := sha256.Sum256([]byte(f.identity()))
	return filepath.Join(dir, "volume-"+hex.EncodeToString(name[:8])+".json"), nil
}

// errBadRecord is the error for a record that zxfer did not write.
var errBadRecord = errors.New("its record is damaged")

// readVolumeRecord returns the record of a device or file, or nil if there is none.
func readVolumeRecord(f Facts) (*volumeRecord, error) {
	name, err := volumeRecordPath(f)
	if err != nil {
		return nil, err
	}
	text, err := readOwnFile(name, maxVolumeRecord)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &volumeRecord{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil || r.Version != volumeRecordVersion || !r.valid(f) {
		return nil, fmt.Errorf("%w: %s", errBadRecord, name)
	}
	return r, nil
}

// valid reports whether zxfer may have written the record for a device or file.
func (r *volumeRecord) valid(f Facts) bool {
	for _, s := range []VolumeSnapshot{r.Held, r.Applying} {
		if s.GUID != 0 && (s.Size <= 0 || s.Dataset == "" || s.Name == "") || s.Size > maxVolume {
			return false
		}
	}
	applying := r.Applying.GUID != 0
	return r.Changed == "" && (applying || r.Held.GUID != 0) && (r.State == volumeApplying) == applying &&
		len(r.Head) <= headHashes*headHash && len(r.NextHead) <= headHashes*headHash &&
		(r.Held.GUID == 0 || len(r.Data) == dataMapBytes(r.Held.Size)) && (f.IsFile() || r.Device == f.identity())
}

// headHashes is the largest number of hashes of a head.
const headHashes = headSize / headUnit

// readOwnFile reads a file of this user or root that no other user can write to. It follows no link:
// other users may be able to write to the directory of an image file.
func readOwnFile(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 || st.Size > limit {
		return nil, fmt.Errorf("%w: %s: it is no file that only this user writes", errBadRecord, name)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// write stores the record durably.
func (r *volumeRecord) write(f Facts) error {
	name, err := volumeRecordPath(f)
	if err != nil {
		return err
	}
	r.Version, r.State = volumeRecordVersion, volumeComplete
	if r.Applying.GUID != 0 {
		r.State = volumeApplying
	}
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := replaceFile(name, append(text, '\n')); err != nil {
		return fmt.Errorf("record of %s: %w", f.Path, err)
	}
	return nil
}

// replaceFile replaces a file atomically and durably.
func replaceFile(name string, text []byte) error {
	if !strings.HasSuffix(name, RecordSuffix) { // the state directory
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
	}
	next := name + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) { // of a killed process
		return err
	}
	f, err := os.OpenFile(next, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(next, name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return syncDir(filepath.Dir(name))
}

// removeVolumeRecord deletes the record of a device or file that gets other contents.
func removeVolumeRecord(f Facts) error {
	name, err := volumeRecordPath(f)
	if err != nil {
		return err
	}
	if err := os.Remove(name); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("record of the volume on %s: %w", f.Path, err)
	}
	return syncDir(filepath.Dir(name))
}

// inspectVolume reads the record of a volume's copy and checks that the target still holds it.
func (f *Facts) inspectVolume(v view) {
	if f.Denied || f.Kind == KindMissing {
		return
	}
	r, err := readVolumeRecord(*f)
	switch {
	case err != nil:
		f.Volume = &VolumeCopy{Changed: err.Error()}
	case r != nil:
		f.Volume = &r.VolumeCopy
		f.Volume.Changed = r.changed(*f, v)
	}
}

// changed returns why a target no longer matches its record, or "". It detects every write to an
// image file. On a device, it detects writes to the head, and all that the kernel counted since the
// last boot.
func (r *volumeRecord) changed(f Facts, v view) string {
	complete := r.Applying.GUID == 0
	switch {
	case f.Kind == KindFile && complete && (f.Size != r.Held.Size || f.ModTime.UnixNano() != r.ModTime):
		return "it was modified on " + f.ModTime.UTC().Format("2006-01-02 15:04:05 UTC")
	case f.Kind == KindFile && !complete && f.Inode != r.Inode:
		return "it was replaced by another file"
	case !f.IsFile() && f.Size < max(r.Held.Size, r.Applying.Size):
		return fmt.Sprintf("it has only %d bytes", f.Size)
	}
	if n, known := v.written(f.Name); !f.IsFile() && complete && known && r.Boot == f.Boot && r.Boot != "" && n != r.Written {
		return "it was written to since"
	}
	head, err := readHead(f)
	switch {
	case err != nil:
		return "it cannot be read: " + err.Error()
	case !r.intact(head):
		return "another program wrote to its start"
	}
	return ""
}

// written returns the number of sectors that the kernel wrote to a device since it exists.
// https://www.kernel.org/doc/html/latest/block/stat.html
func (v view) written(name string) (sectors int64, known bool) {
	fields := strings.Fields(v.readLine("sys/class/block/" + name + "/stat"))
	if name == "" || len(fields) < 7 {
		return 0, false
	}
	n, err := strconv.ParseInt(fields[6], 10, 64)
	return n, err == nil
}

// readHead returns the first headSize bytes of a device or file. Missing bytes are zeros.
func readHead(f Facts) ([]byte, error) {
	h, err := openHandle(f, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer h.f.Close()
	head := AlignedBuffer(headSize)
	if _, err := h.readAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return head, nil
}

// hashHead returns the hashes of the head of a volume with size bytes.
func hashHead(head []byte, size int64) []byte {
	head = head[:min(int64(len(head)), size)]
	out := make([]byte, 0, headHashes*headHash)
	for len(head) > 0 {
		n := min(headUnit, len(head))
		out = binary.BigEndian.AppendUint64(out, xxh3.Hash(head[:n]))
		head = head[n:]
	}
	return out
}

// intact reports whether each unit of the head is as it was before or as it will be after the copy.
func (r *volumeRecord) intact(head []byte) bool {
	before, after := hashHead(head, r.headBytes()), hashHead(head, r.Applying.Size)
	same := func(have, want []byte, at int) bool {
		return at+headHash <= min(len(have), len(want)) && bytes.Equal(have[at:at+headHash], want[at:at+headHash])
	}
	n := len(r.Head)
	if len(r.NextHead) > 0 {
		n = min(n, len(r.NextHead)) // a smaller volume keeps no more
	}
	for at := 0; at < n; at += headHash {
		if !same(before, r.Head, at) && !same(after, r.NextHead, at) {
			return false
		}
	}
	return true
}

// headBytes returns the size of the volume whose head Head describes. A full copy records the old
// contents of the range that it overwrites.
func (r *volumeRecord) headBytes() int64 {
	if r.Held.GUID == 0 {
		return r.Applying.Size
	}
	return r.Held.Size
}
