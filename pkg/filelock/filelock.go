// Package filelock locks files and directories with flock(2), so that one process at a time uses what they
// stand for. It does not wait for a lock. The kernel releases a lock when the process ends.
package filelock

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked is the error of Try if another open file has the lock.
var ErrLocked = errors.New("another process has the lock")

// Try locks f exclusively. A file system without locks returns another error than ErrLocked.
func Try(f *os.File) error {
	err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// Close releases the lock of f, if it has one, and closes f. A process that another goroutine forks has a
// copy of the descriptor until it runs its program. Closing alone would leave the lock to it.
func Close(f *os.File) error {
	_ = flock(f, unix.LOCK_UN) // fails only without locks
	return f.Close()
}

func flock(f *os.File, how int) error {
	conn, err := f.SyscallConn() // unlike Fd, it keeps the file non-blocking
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(fd), how)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}
