package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// Replace replaces a file and sets its mode. A reader sees the old or the new file, never a part,
// even after a crash.
func Replace(path string, text []byte, mode os.FileMode) error {
	return write(path, text, mode, func(f *os.File, _ os.FileInfo) error { return f.Chmod(mode) }, rename)
}

// ReplaceKeepingMode is Replace with the mode of the old file. A new file has mode 0666, reduced by the umask.
func ReplaceKeepingMode(path string, text []byte) error {
	return write(path, text, 0o666, func(f *os.File, old os.FileInfo) error {
		if old == nil || !old.Mode().IsRegular() {
			return nil
		}
		return f.Chmod(old.Mode().Perm())
	}, rename)
}

// Create writes a new file. If it exists, Create returns fs.ErrExist. The umask reduces the mode.
func Create(path string, text []byte, mode os.FileMode) error {
	return write(path, text, mode, nil, func(dir *os.Root, from, to string) error {
		err := dir.Link(from, to)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		f, err := dir.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode) // this filesystem has no hard links
		if err != nil {
			return err
		}
		return errors.Join(f.Close(), dir.Rename(from, to))
	})
}

func rename(dir *os.Root, from, to string) error { return dir.Rename(from, to) }

// write writes a temporary file in the directory of path and calls publish to give it its name.
//
// Another user may own the directory and replace the temporary file at any time. Therefore write
// opens the directory once, and sets mode and owner through the file descriptor: own does, or nil if
// the umask applies. own gets the file that is replaced, nil if there is none.
func write(path string, text []byte, mode os.FileMode, own func(f *os.File, old os.FileInfo) error, publish func(dir *os.Root, from, to string) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, causeOf(err))
		}
	}()
	dir, err := openDirectory(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	base := filepath.Base(path)
	temp := fmt.Sprintf("%s%x%s", temporaryPrefix(base), rand.Uint64(), temporarySuffix)
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer dir.Remove(temp) // after a rename, it does not exist
	if own != nil {
		old, _ := dir.Lstat(base) // nil if it does not exist
		err = own(f, old)
	}
	if err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := publish(dir, temp, base); err != nil {
		return err
	}
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// causeOf returns the cause of an error that names the temporary file.
func causeOf(err error) error {
	var atPath *fs.PathError
	var atLink *os.LinkError
	switch {
	case errors.As(err, &atPath):
		return atPath.Err
	case errors.As(err, &atLink):
		return atLink.Err
	}
	return err
}

// temporaryPrefix returns the start of the names of the temporary files for a file. They are hidden and lack the suffix
// of the file, so that the textfile collector ignores them.
func temporaryPrefix(base string) string {
	return "." + strings.TrimSuffix(base, filepath.Ext(base)) + "-"
}

const temporarySuffix = ".new"
