package transfer

import (
	"os"

	"golang.org/x/sys/unix"
)

// largePipe is the size of pipes to and from zfs and ssh in bytes: the maximum for an unprivileged
// process (fs.pipe-max-size). The default of 64 KiB is a sixteenth of a large record, which would take
// that many switches between both ends.
const largePipe = 1 << 20

// GrowPipe enlarges a pipe, and reports whether it is as large as largePipe. Failure is harmless but
// slower: a user over fs.pipe-user-pages-soft gets EPERM.
func GrowPipe(end *os.File) (large bool) {
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
