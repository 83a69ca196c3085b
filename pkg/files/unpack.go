package files

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Unpacker is a transfer.Sink that unpacks an Archive. A file gets its name when it is complete, so
// an interrupted stream leaves only complete files.
type Unpacker struct {
	into  UnpackOptions
	write *io.PipeWriter
	done  chan struct{}
	err   error // valid after done is closed
	state *unpackWorker
}

// Unpack unpacks into a directory, and creates it if it is missing.
func Unpack(into UnpackOptions) (*Unpacker, error) {
	if !path.IsAbs(into.Directory) {
		return nil, fmt.Errorf("%q is not an absolute path", into.Directory)
	}
	root, err := os.OpenFile(into.Directory, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case !errors.Is(err, fs.ErrNotExist):
	case into.DryRun:
		root, err = nil, nil
	default:
		root, err = makeDirectory(path.Clean(into.Directory))
	}
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	u := &Unpacker{into: into, write: w, done: make(chan struct{})}
	u.state = &unpackWorker{into: into, root: root, leading: true}
	go func() {
		defer close(u.done)
		u.err = u.state.run(r)
		_ = r.CloseWithError(u.err) // makes writes fail; it always returns nil
	}()
	return u, nil
}

func (u *Unpacker) Write(p []byte) (int, error) { return u.write.Write(p) }

func (u *Unpacker) Name() string { return "the files in " + u.into.Directory }

// Commit completes the last file and syncs the filesystem.
func (u *Unpacker) Commit(context.Context) error {
	_ = u.write.Close() // always returns nil
	<-u.done
	if u.err == nil && u.state.root != nil && !u.into.DryRun {
		u.err = unix.Syncfs(int(u.state.root.Fd()))
	}
	return errors.Join(u.err, u.state.close())
}

// Abort keeps the complete files. It returns errors other than cause.
func (u *Unpacker) Abort(cause error) error {
	_ = u.write.CloseWithError(cause)
	<-u.done
	err := u.err
	if errors.Is(err, cause) {
		err = nil
	}
	return errors.Join(err, u.state.close())
}

// Account returns the counts. Call it after Commit or Abort.
func (u *Unpacker) Account() Account { return u.state.account }

// unpackWorker is the state of an Unpacker's goroutine.
type unpackWorker struct {
	into    UnpackOptions
	root    *os.File // nil in a dry run if it is missing
	account Account
	last    string
	folders []folder // open folders, from the root to the current one
	pending *pending
	leading bool // all files so far were skipped
	// unstorable is the last folder that was skipped because of its name, "" if none.
	unstorable string
}

// folder is an open folder.
type folder struct {
	name  string
	at    *os.File    // nil in a dry run if it is missing
	attrs *tar.Header // attributes to set when it is closed; nil = keep them
}

func (u *unpackWorker) close() error {
	if u.root == nil {
		return nil
	}
	return u.root.Close()
}

func (u *unpackWorker) run(in io.Reader) (err error) {
	defer func() {
		u.discardPending()
		for _, f := range u.folders {
			f.close()
		}
	}()
	buffered := bufio.NewReaderSize(in, 256<<10)
	r := tar.NewReader(buffered)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = u.unpackEntry(h, r)
		}
		if err != nil {
			return err
		}
	}
	if err := u.finishPending(); err != nil {
		return err
	}
	u.leave(0)
	_, err = io.Copy(io.Discard, buffered) // padding of the last block
	return err
}

// unpackEntry unpacks the next file. It refuses archives that zxfer did not create. Names must be
// in order, and each must be in a folder that came earlier and is still open.
func (u *unpackWorker) unpackEntry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		if _, ok := h.PAXRecords[damagedRecord]; ok {
			u.discardPending() // the source reports the cause
		}
		return nil
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, gnuRecord) {
			return fmt.Errorf("archive contains the invalid record %s", printablePath(key))
		}
	}
	if err := u.finishPending(); err != nil {
		return err
	}
	name := strings.TrimSuffix(h.Name, "/")
	if err := checkName(name); err != nil {
		return err
	}
	if u.last != "" && comparePaths(name, u.last) <= 0 {
		return fmt.Errorf("archive contains %s after %s", printablePath(name), printablePath(u.last))
	}
	u.last = name
	if u.unstorable != "" && strings.HasPrefix(name, u.unstorable+"/") {
		return nil
	}
	at, err := u.folderOf(name)
	if err != nil {
		return err
	}
	size, data, sparse, err := sizeOf(h)
	if err != nil {
		return err
	}
	found, err := u.inspect(at, path.Base(name), h, size)
	if err != nil {
		return err
	}
	if found == unstorable {
		why := errors.New("the target's filesystem cannot store so long a name")
		if h.Typeflag == tar.TypeDir {
			u.unstorable, why = name, fmt.Errorf("%w: nothing below it was restored", why)
		}
		u.account.problem(name, why)
		return nil
	}
	if found == same || found == blocked || u.into.DryRun || h.Typeflag == tar.TypeDir {
		u.count(name, found, h, data) // others when they are complete
	}
	if found == blocked && !u.into.DryRun {
		return fmt.Errorf("%s: an object of another type exists there", printablePath(name))
	}
	if h.Typeflag == tar.TypeDir {
		return u.enterFolder(at, name, h, found)
	}
	if found == same || u.into.DryRun {
		return nil
	}
	if found == other && !u.into.Overwrite {
		return fmt.Errorf("%s was created during the restore: %w", printablePath(name), fs.ErrExist)
	}
	return u.create(at, name, h, found, size, data, sparse, r)
}

// maxName is the largest size of a name in bytes. OpenZFS with the feature longname permits it.
const maxName = 1023

// checkName returns an error if name is not a relative path without special parts.
func checkName(name string) error {
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || len(part) > maxName || strings.ContainsRune(part, 0) {
			return fmt.Errorf("archive contains the invalid name %s", printablePath(name))
		}
	}
	if len(parts) > maxDepth+1 {
		return errors.New("archive contains too deeply nested directories")
	}
	return nil
}

// folderOf closes the folders that do not contain name, and returns the one that does.
func (u *unpackWorker) folderOf(name string) (*os.File, error) {
	n := len(u.folders)
	for n > 0 && !strings.HasPrefix(name, u.folders[n-1].name+"/") {
		n--
	}
	u.leave(n)
	parent, at := "", u.root
	if n > 0 {
		parent, at = u.folders[n-1].name+"/", u.folders[n-1].at
	}
	if strings.Contains(strings.TrimPrefix(name, parent), "/") {
		return nil, fmt.Errorf("archive contains %s, but not its directory", printablePath(name))
	}
	return at, nil
}

// leave closes all folders except the first n.
func (u *unpackWorker) leave(n int) {
	for i := len(u.folders) - 1; i >= n; i-- {
		f := u.folders[i]
		if f.attrs != nil && f.at != nil {
			u.setAttributes(f.name, f.at, f.attrs)
		}
		f.close()
	}
	u.folders = u.folders[:n]
}

func (f folder) close() {
	if f.at != nil {
		_ = f.at.Close() // nothing was written through it
	}
}

// unfinished is the mode of a folder during unpacking. It identifies the folder after an
// interruption, because a sticky bit without access for others is unusual.
const unfinished = 0o1700

func (u *unpackWorker) isUnfinished(st *unix.Stat_t) bool {
	// A folder inherits setgid from its parent.
	return st.Mode&0o7777&^unix.S_ISGID == unfinished && int(st.Uid) == os.Geteuid()
}

// enterFolder opens a folder, and creates it if it is missing.
func (u *unpackWorker) enterFolder(parent *os.File, name string, h *tar.Header, found placeState) error {
	if len(u.folders) > maxDepth {
		return errors.New("archive contains too deeply nested directories")
	}
	f := folder{name: name}
	if parent != nil && !(u.into.DryRun && found == absent) {
		base := path.Base(name)
		if found == absent {
			if err := unix.Mkdirat(int(parent.Fd()), base, unfinished); err != nil {
				return fmt.Errorf("%s: %w", printablePath(name), err)
			}
		}
		var err error
		if f.at, err = openBelow(int(parent.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			if !(u.into.DryRun && found == blocked) {
				return fmt.Errorf("%s: %w", printablePath(name), err)
			}
			f.at = nil
		}
		if found == absent {
			if err := u.markUnfinished(f.at); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", printablePath(name), err), f.at.Close())
			}
		}
	}
	if f.at != nil && !u.into.DryRun {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.at.Fd()), &st); err != nil {
			return fmt.Errorf("%s: %w", printablePath(name), err)
		}
		if u.isUnfinished(&st) || u.into.Overwrite {
			f.attrs = h
		}
	}
	u.folders = append(u.folders, f)
	return nil
}

// makeDirectory creates a directory and its missing ancestors, and opens it. It opens each relative
// to its parent, because another user with write access could replace a name with a link.
func makeDirectory(name string) (*os.File, error) {
	parent, err := os.OpenFile(path.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) && path.Dir(name) != name {
		parent, err = makeDirectory(path.Dir(name))
	}
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := unix.Mkdirat(int(parent.Fd()), path.Base(name), 0o700); err != nil {
		return nil, &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	dir, err := openBelow(int(parent.Fd()), path.Base(name), unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		var st unix.Stat_t
		if err = errors.Join(unix.Fstat(int(dir.Fd()), &st), isNew(dir, &st)); err != nil {
			_ = dir.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return dir, nil
}

// isNew returns an error unless a directory that was just created is empty and belongs to this
// account.
func isNew(dir *os.File, st *unix.Stat_t) error {
	if _, err := dir.ReadDir(1); !errors.Is(err, io.EOF) || int(st.Uid) != os.Geteuid() {
		return errSwapped
	}
	return nil
}

// markUnfinished sets the mode of a directory that was just created to unfinished, because an
// inherited ACL may have changed it. Another user with write access to the parent can replace the
// directory. So only an empty directory of this account is accepted.
func (u *unpackWorker) markUnfinished(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	if u.isUnfinished(&st) {
		return nil
	}
	if err := isNew(dir, &st); err != nil {
		return err
	}
	return unix.Fchmod(int(dir.Fd()), unfinished)
}
