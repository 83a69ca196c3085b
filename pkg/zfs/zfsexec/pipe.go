package zfsexec

import (
	"os"

	"golang.org/x/sys/unix"
)

// ours says which end of a pipe stays in this process.
type ours struct{ read, write bool }

// newPipe returns a pipe whose ends no child inherits by accident. Our end
// does not block, so that the runtime can wait for it and wake it; the
// child's does: zfs send takes EAGAIN for a failure.
func newPipe(o ours) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	// os.NewFile polls a descriptor that does not block. It cannot fail here.
	_ = unix.SetNonblock(fd[0], o.read)
	_ = unix.SetNonblock(fd[1], o.write)
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}
