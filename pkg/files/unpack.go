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

// Unpacker is a transfer.Sink of an Archive. Each file gets its name when it is
// whole, so that a stream that is cut leaves whole files, and none by half.
type Unpacker struct {
	into  Into
	write *io.PipeWriter
	done  chan struct{}
	err   error // valid after done
	state *unpacking
}

// Unpack unpacks into a directory.
func Unpack(into Into) (*Unpacker, error) {
	if !path.IsAbs(into.Directory) {
		return nil, fmt.Errorf("%q is no absolute path", into.Directory)
	}
	root, err := os.OpenFile(into.Directory, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	switch {
	case !errors.Is(err, fs.ErrNotExist):
	case into.Look:
		root, err = nil, nil
	default:
		root, err = makeDirectory(path.Clean(into.Directory))
	}
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	u := &Unpacker{into: into, write: w, done: make(chan struct{})}
	u.state = &unpacking{into: into, root: root, leading: true}
	go func() {
		defer close(u.done)
		u.err = u.state.run(r)
		_ = r.CloseWithError(u.err) // which fails writes; it returns nothing else
	}()
	return u, nil
}

// Write writes on.
func (u *Unpacker) Write(p []byte) (int, error) { return u.write.Write(p) }

// Name says where the files go.
func (u *Unpacker) Name() string { return "the files in " + u.into.Directory }

// Commit gives the last file its name, and has all of them stored.
func (u *Unpacker) Commit(context.Context) error {
	_ = u.write.Close() // it returns nothing else
	<-u.done
	if u.err == nil && u.state.root != nil && !u.into.Look {
		u.err = unix.Syncfs(int(u.state.root.Fd()))
	}
	return errors.Join(u.err, u.state.close())
}

// Abort leaves the files that are whole. What failed by itself is told.
func (u *Unpacker) Abort(cause error) error {
	_ = u.write.CloseWithError(cause)
	<-u.done
	err := u.err
	if errors.Is(err, cause) {
		err = nil
	}
	return errors.Join(err, u.state.close())
}

// Account is what came of it; after Commit or Abort.
func (u *Unpacker) Account() Account { return u.state.account }

// unpacking is the state of an Unpacker's goroutine.
type unpacking struct {
	into    Into
	root    *os.File // nil where there is none, and none is made
	account Account
	last    string
	folders []folder // the one that the last name is in, after those above it
	pending *pending
	leading bool // all so far are passed over
}

// folder is one that was entered.
type folder struct {
	name  string
	at    *os.File    // nil where it is not there, and not made
	attrs *tar.Header // what it is given when it is left; nil where it stays as it is
}

func (u *unpacking) close() error {
	if u.root == nil {
		return nil
	}
	return u.root.Close()
}

func (u *unpacking) run(in io.Reader) (err error) {
	defer func() {
		u.drop()
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
			err = u.entry(h, r)
		}
		if err != nil {
			return err
		}
	}
	if err := u.settle(); err != nil {
		return err
	}
	u.leave(0)
	_, err = io.Copy(io.Discard, buffered) // what fills up the last block
	return err
}

// entry takes what comes next. An archive that this program did not make is
// refused: names come in order, each below a folder that came before it and is a
// folder still, as that is open.
func (u *unpacking) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		if _, ok := h.PAXRecords[damagedRecord]; ok {
			u.drop() // the source tells why
		}
		return nil
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, gnuRecord) {
			return fmt.Errorf("the archive has the record %s", readable(key))
		}
	}
	if err := u.settle(); err != nil {
		return err
	}
	name := strings.TrimSuffix(h.Name, "/")
	if err := checkName(name); err != nil {
		return err
	}
	if u.last != "" && compare(name, u.last) <= 0 {
		return fmt.Errorf("the archive has %s behind %s", readable(name), readable(u.last))
	}
	u.last = name
	at, err := u.enter(name)
	if err != nil {
		return err
	}
	size, err := sizeOf(h)
	if err != nil {
		return err
	}
	found, err := u.find(at, path.Base(name), h, size)
	if err != nil {
		return err
	}
	if found == same || found == blocked || u.into.Look || h.Typeflag == tar.TypeDir {
		u.count(name, found, h, size) // others when they have come
	}
	if found == blocked && !u.into.Look {
		return fmt.Errorf("%s: something of another kind is in its place", readable(name))
	}
	if h.Typeflag == tar.TypeDir {
		return u.folder(at, name, h, found)
	}
	if found == same || u.into.Look {
		return nil
	}
	if found == other && !u.into.Overwrite {
		return fmt.Errorf("%s has come into the way: %w", readable(name), fs.ErrExist)
	}
	return u.make(at, name, h, found, size, r)
}

// checkName refuses what is no name below a directory.
func checkName(name string) error {
	parts := strings.Split(name, "/")
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || len(part) > 255 || strings.ContainsRune(part, 0) {
			return fmt.Errorf("the archive has the name %s", readable(name))
		}
	}
	if len(parts) > maxDepth+1 {
		return errors.New("the archive nests too many folders")
	}
	return nil
}

// enter leaves the folders that a name is not in, and returns the one that it is in.
func (u *unpacking) enter(name string) (*os.File, error) {
	n := len(u.folders)
	for n > 0 && !strings.HasPrefix(name, u.folders[n-1].name+"/") {
		n--
	}
	u.leave(n)
	above, at := "", u.root
	if n > 0 {
		above, at = u.folders[n-1].name+"/", u.folders[n-1].at
	}
	if strings.Contains(strings.TrimPrefix(name, above), "/") {
		return nil, fmt.Errorf("the archive has %s, and not the folder that it is in", readable(name))
	}
	return at, nil
}

// leave leaves all folders but the first n.
func (u *unpacking) leave(n int) {
	for i := len(u.folders) - 1; i >= n; i-- {
		f := u.folders[i]
		if f.attrs != nil && f.at != nil {
			u.attributes(f.name, f.at, f.attrs)
		}
		f.close()
	}
	u.folders = u.folders[:n]
}

func (f folder) close() {
	if f.at != nil {
		_ = f.at.Close() // nothing was written by it
	}
}

// unfinished is the mode of a folder that files are being brought into. It is told
// by it after a cut: no other has the sticky bit for its owner alone.
const unfinished = 0o1700

func (u *unpacking) unfinished(st *unix.Stat_t) bool {
	// A folder takes setgid from the one above it.
	return st.Mode&0o7777&^unix.S_ISGID == unfinished && int(st.Uid) == os.Geteuid()
}

// folder enters a folder.
func (u *unpacking) folder(parent *os.File, name string, h *tar.Header, found what) error {
	if len(u.folders) > maxDepth {
		return errors.New("the archive nests too many folders")
	}
	f := folder{name: name}
	if parent != nil && !(u.into.Look && found == absent) {
		base := path.Base(name)
		if found == absent {
			if err := unix.Mkdirat(int(parent.Fd()), base, unfinished); err != nil {
				return fmt.Errorf("%s: %w", readable(name), err)
			}
		}
		var err error
		if f.at, err = openBelow(int(parent.Fd()), base, unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
			if !(u.into.Look && found == blocked) {
				return fmt.Errorf("%s: %w", readable(name), err)
			}
			f.at = nil
		}
		if found == absent {
			if err := u.claim(f.at); err != nil {
				return errors.Join(fmt.Errorf("%s: %w", readable(name), err), f.at.Close())
			}
		}
	}
	if f.at != nil && !u.into.Look {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.at.Fd()), &st); err != nil {
			return fmt.Errorf("%s: %w", readable(name), err)
		}
		if u.unfinished(&st) || u.into.Overwrite {
			f.attrs = h
		}
	}
	u.folders = append(u.folders, f)
	return nil
}

// makeDirectory makes a directory and those above it that do not exist, and opens it. It
// opens each below the one above: another user who can write there can replace a name by
// a link.
func makeDirectory(name string) (*os.File, error) {
	above, err := os.OpenFile(path.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) && path.Dir(name) != name {
		above, err = makeDirectory(path.Dir(name))
	}
	if err != nil {
		return nil, err
	}
	defer above.Close()
	if err := unix.Mkdirat(int(above.Fd()), path.Base(name), 0o700); err != nil {
		return nil, &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	made, err := openBelow(int(above.Fd()), path.Base(name), unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		var st unix.Stat_t
		if err = errors.Join(unix.Fstat(int(made.Fd()), &st), isNew(made, &st)); err != nil {
			_ = made.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return made, nil
}

// isNew returns an error if a directory that was just made is another one: it is not empty
// or belongs to another account.
func isNew(made *os.File, st *unix.Stat_t) error {
	if _, err := made.ReadDir(1); !errors.Is(err, io.EOF) || int(st.Uid) != os.Geteuid() {
		return errSwapped
	}
	return nil
}

// claim gives a directory that was just made the mode of an unfinished one: the directory
// above may have changed its mode by an inherited ACL. If another user can write there,
// he can put another directory in its place. Only an empty directory of this account is
// taken.
func (u *unpacking) claim(made *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(made.Fd()), &st); err != nil {
		return err
	}
	if u.unfinished(&st) {
		return nil
	}
	if err := isNew(made, &st); err != nil {
		return err
	}
	return unix.Fchmod(int(made.Fd()), unfinished)
}
