package cli

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// pipePair selects the ends of a pipe that stay in this process.
type pipePair struct{ read, write bool }

// newPipe returns a pipe that children do not inherit unless it is passed to them. This process's
// end does not block, so that the runtime can interrupt it. The child's end blocks, because zfs
// send treats EAGAIN as a failure.
func newPipe(o pipePair) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// os.NewFile polls a non-blocking descriptor. It cannot fail here.
	_ = unix.SetNonblock(fd[0], o.read)
	_ = unix.SetNonblock(fd[1], o.write)
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// largePipe is the size of pipes to and from zfs in bytes: the maximum for an unprivileged process
// (fs.pipe-max-size). The default of 64 KiB is a sixteenth of a large record, which would take that
// many switches between both ends.
const largePipe = 1 << 20

// growPipe enlarges a pipe. Failure is harmless but slower: a user over fs.pipe-user-pages-soft
// gets EPERM.
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

// StreamPipe returns a pipe that another process writes to. large reports whether it was enlarged.
func StreamPipe() (r, w *os.File, large bool, err error) {
	if r, w, err = newPipe(pipePair{read: true}); err != nil {
		return nil, nil, false, err
	}
	return r, w, growPipe(w), nil
}

// takesLargePipe reports whether zfs receive of a module version works with an enlarged pipe.
// Before 2.2 it resizes the pipe itself, and could hang on a larger one. An unknown version counts
// as old.
func takesLargePipe(module string) bool {
	for _, old := range []string{"0.", "2.0.", "2.1."} {
		if strings.HasPrefix(module, old) {
			return false
		}
	}
	return module != ""
}
