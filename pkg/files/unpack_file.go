package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// placeState describes the existing file at a file's path.
type placeState int

const (
	absent placeState = iota
	same
	other
	blocked    // by a file that is never replaced
	unstorable // the filesystem does not store so long a name
)

// inspect returns the state of a file's path.
func (u *unpackWorker) inspect(at *os.File, base string, h *tar.Header, size uint64) (placeState, error) {
	if at == nil {
		return absent, nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(int(at.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return absent, nil
	}
	if errors.Is(err, unix.ENAMETOOLONG) {
		return unstorable, nil
	}
	if err != nil {
		return absent, fmt.Errorf("%s: %w", printablePath(h.Name), err)
	}
	e := &entry{folder: int(at.Fd()), name: base, stat: st}
	kind := e.kind()
	switch h.Typeflag {
	case tar.TypeDir:
		if kind != Folder {
			return blocked, nil
		}
		u.account.Unfinished = u.account.Unfinished || u.isUnfinished(&st)
		if u.into.Overwrite && u.attributesDiffer(e, h) {
			return other, nil
		}
		return same, nil
	case tar.TypeSymlink:
		if target, err := e.target(); kind == Link && err == nil && target == h.Linkname {
			return same, nil
		}
	default:
		if kind == Regular && uint64(st.Size) == size && sameTime(st.Mtim.Sec, st.Mtim.Nsec, h.ModTime) && !(u.into.Overwrite && u.attributesDiffer(e, h)) {
			return same, nil
		}
	}
	if kind == Folder {
		return blocked, nil
	}
	return other, nil
}

// attributesDiffer reports whether unpacking would change the owner or mode.
func (u *unpackWorker) attributesDiffer(e *entry, h *tar.Header) bool {
	owned := os.Geteuid() != 0 || int(e.stat.Uid) == h.Uid && int(e.stat.Gid) == h.Gid
	return !owned || e.mode() != u.mode(h)
}

// count adds a file with size bytes of data to the account.
func (u *unpackWorker) count(name string, found placeState, h *tar.Header, size uint64) {
	a := &u.account
	if found == same {
		if h.Typeflag != tar.TypeDir {
			a.Same++
		}
		if u.leading {
			a.After = name
		}
	} else {
		u.leading = false
	}
	if h.Typeflag == tar.TypeLink {
		size = 0
	}
	if !u.leading {
		a.Rest += size
	}
	switch found {
	case same:
		return
	case absent:
		a.New++
	case other:
		a.Replaced++
		appendLimited(&a.Differ, name)
	case blocked:
		appendLimited(&a.Blocked, name)
	}
	a.Bytes += size
	appendLimited(&a.Names, name)
}

// pending is a file with a temporary name, which is renamed once it is complete.
type pending struct {
	at         *os.File
	name, temp string
	found      placeState // state of its path
	size       uint64     // of the data
	replaces   bool
	file       *os.File // nil for a hard link
	header     *tar.Header
}

// create creates a file with a temporary name in its folder.
func (u *unpackWorker) create(at *os.File, name string, h *tar.Header, found placeState, size, data uint64, sparse bool, r io.Reader) (err error) {
	p := &pending{at: at, name: name, header: h, found: found, size: data, replaces: u.into.Overwrite,
		temp: fmt.Sprintf(".zxfer-%016x.part", xxh3.HashString(name))}
	folder := int(at.Fd())
	// Removes a leftover of an interrupted transfer, if any.
	_ = unix.Unlinkat(folder, p.temp, 0)
	u.pending = p
	switch h.Typeflag {
	case tar.TypeReg:
		fd, err := unix.Openat(folder, p.temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return fmt.Errorf("%s: %w", printablePath(name), err)
		}
		p.file = os.NewFile(uintptr(fd), name)
		err = writeSparse(p.file, r, int64(size), int64(data), sparse)
		if err != nil {
			return fmt.Errorf("%s: %w", printablePath(name), withoutPath(err))
		}
		return nil
	case tar.TypeSymlink:
		if err = unix.Symlinkat(h.Linkname, folder, p.temp); err == nil {
			p.file, err = openLink(folder, p.temp)
		}
	case tar.TypeLink:
		if err = u.link(p, size); errors.Is(err, errNoLinkTarget) {
			u.account.problem(name, err)
			u.pending, err = nil, nil
		}
	default:
		err = fmt.Errorf("archive contains an entry of unknown type %q", h.Typeflag)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", printablePath(name), err)
	}
	return nil
}

var errNoLinkTarget = errors.New("archive lacks the file of this hard link")

// link links to an earlier file of the archive, which must have the size and time in the header. So
// the archive cannot make other files accessible under a new name.
func (u *unpackWorker) link(p *pending, size uint64) error {
	if err := checkName(p.header.Linkname); err != nil {
		return err
	}
	at, err := openBelow(int(u.root.Fd()), path.Dir(p.header.Linkname), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return errNoLinkTarget
	}
	defer at.Close()
	base := path.Base(p.header.Linkname)
	var st unix.Stat_t
	err = unix.Fstatat(int(at.Fd()), base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || uint64(st.Size) != size || !sameTime(st.Mtim.Sec, st.Mtim.Nsec, p.header.ModTime) {
		return errNoLinkTarget
	}
	return unix.Linkat(int(at.Fd()), base, int(p.at.Fd()), p.temp, 0)
}

// finishPending sets the attributes of the previous file and gives it its name.
func (u *unpackWorker) finishPending() error {
	p := u.pending
	if p == nil {
		return nil
	}
	if p.file != nil {
		u.setAttributes(p.name, p.file, p.header)
		err := p.file.Close()
		p.file = nil
		if err != nil {
			return fmt.Errorf("%s: %w", printablePath(p.name), withoutPath(err))
		}
	}
	if err := p.moveIntoPlace(); err != nil {
		return fmt.Errorf("%s: %w", printablePath(p.name), err)
	}
	u.count(p.name, p.found, p.header, p.size)
	u.pending = nil
	return nil
}

// moveIntoPlace renames a file. Unless it replaces files, it keeps a file that was created at the
// same time.
func (p *pending) moveIntoPlace() error {
	at, base := int(p.at.Fd()), path.Base(p.name)
	if p.replaces {
		err := unix.Renameat(at, p.temp, at, base)
		_ = unix.Unlinkat(at, p.temp, 0) // rename(2) does nothing if both names are links to one file
		return err
	}
	err := unix.Renameat2(at, p.temp, at, base, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := unix.Linkat(at, p.temp, at, base, 0); err != nil { // OpenZFS 2.1
		return err
	}
	return unix.Unlinkat(at, p.temp, 0)
}

// discardPending deletes an incomplete file.
func (u *unpackWorker) discardPending() {
	if p := u.pending; p != nil {
		if p.file != nil {
			_ = p.file.Close()
		}
		_ = unix.Unlinkat(int(p.at.Fd()), p.temp, 0)
		u.pending = nil
	}
}

// writeSparse writes contents, or extents if the header has sparse contents, with holes for zeros.
func writeSparse(f *os.File, r io.Reader, size, data int64, sparse bool) error {
	buf := make([]byte, chunk)
	store := func(x extent) error {
		for off := x.from; off < x.to; {
			n, err := io.ReadFull(r, buf[:min(x.to-off, int64(len(buf)))])
			if err != nil {
				return err
			}
			if slices.ContainsFunc(buf[:n], func(b byte) bool { return b != 0 }) {
				if _, err := f.WriteAt(buf[:n], off); err != nil {
					return err
				}
			}
			off += int64(n)
		}
		return nil
	}
	var err error
	if sparse {
		err = readExtents(r, size, data, store)
	} else {
		err = store(extent{0, size})
	}
	if err != nil {
		return err
	}
	return f.Truncate(size)
}

// privileges are the mode bits that give a program additional rights.
const privileges = unix.S_ISUID | unix.S_ISGID

// mode returns the mode of a header, without privileges unless root restores the owner.
func (u *unpackWorker) mode(h *tar.Header) uint32 {
	m := uint32(h.Mode) & 0o7777
	if os.Geteuid() != 0 {
		m &^= privileges
	}
	return m
}

// setAttributes sets the attributes in the header. An attribute that the filesystem does not
// support is reported as a problem.
func (u *unpackWorker) setAttributes(name string, f *os.File, h *tar.Header) {
	fd, root := int(f.Fd()), os.Geteuid() == 0
	try := func(what string, err error) {
		if err != nil {
			u.account.problem(name, fmt.Errorf("%s: %w", what, err))
		}
	}
	if root {
		try("cannot set its owner", unix.Fchownat(fd, "", h.Uid, h.Gid, unix.AT_EMPTY_PATH))
	} else {
		u.account.OwnersNotKept = true
	}
	capable := false
	for key, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(key, xattrRecord)
		if !ok || !root && !strings.HasPrefix(attr, "user.") {
			continue
		}
		capable = capable || attr == "security.capability"
		try("its "+printablePath(attr)+" could not be kept", unix.Fsetxattr(fd, attr, []byte(value), 0))
	}
	if h.Typeflag != tar.TypeSymlink {
		mode := u.mode(h)
		if h.Typeflag != tar.TypeDir && (mode&privileges != 0 || capable) {
			u.account.Privileged++
		}
		try("cannot set its mode", unix.Fchmod(fd, mode))
	}
	// Use the path of the descriptor, because kernels before 5.8 do not accept an empty path.
	// os.Chtimes accepts only the years 1678 to 2262.
	at := unix.Timespec{Sec: h.ModTime.Unix(), Nsec: int64(h.ModTime.Nanosecond())}
	try("cannot set its time", unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), []unix.Timespec{at, at}, 0))
}

// errSwapped means that another program replaced a file that zxfer had just created.
var errSwapped = errors.New("another file replaced it")

// openLink opens a symbolic link itself. It fails for any other file.
func openLink(folder int, name string) (*os.File, error) {
	f, err := openBelow(folder, name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return nil, errors.Join(errSwapped, err, f.Close())
	}
	return f, nil
}
