package cli

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// pipePair says which end of a pipe stays in this process.
type pipePair struct{ read, write bool }

// newPipe returns a pipe whose ends no child inherits by accident. Our end
// does not block, so that the runtime can wait for it and wake it; the
// child's does: zfs send takes EAGAIN for a failure.
func newPipe(o pipePair) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// os.NewFile polls a descriptor that does not block. It cannot fail here.
	_ = unix.SetNonblock(fd[0], o.read)
	_ = unix.SetNonblock(fd[1], o.write)
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// largePipe is the size in bytes of pipes to and from zfs: the most that an
// unprivileged process may ask for (fs.pipe-max-size). Linux' own 64 KiB are
// a sixteenth of a large record: each would take as many turns of its two
// ends.
const largePipe = 1 << 20

// growPipe makes a pipe large. A smaller one is slower but not wrong: a user
// over fs.pipe-user-pages-soft gets EPERM.
func growPipe(end *os.File) (large bool) {
	raw, err := end.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, err := unix.FcntlInt(fd, unix.F_SETPIPE_SZ, largePipe)
		large = err == nil && n >= largePipe
	})
	return large
}

// StreamPipe is a pipe whose writer is another process, large or not; see growPipe.
func StreamPipe() (r, w *os.File, large bool, err error) {
	if r, w, err = newPipe(pipePair{read: true}); err != nil {
		return nil, nil, false, err
	}
	return r, w, growPipe(w), nil
}

// takesLargePipe tells whether zfs receive of a version of the module may be
// given a pipe that is not of the usual size. Before 2.2 it resizes the pipe
// itself, and on a larger one could wait for ever. An unknown version is
// taken for an old one.
func takesLargePipe(module string) bool {
	for _, old := range []string{"0.", "2.0.", "2.1."} {
		if strings.HasPrefix(module, old) {
			return false
		}
	}
	return module != ""
}
