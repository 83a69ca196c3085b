package files

import (
	"os"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

// forbid has this thread, and no other, be refused a system call for good.
func forbid(t *testing.T, call uint32, errno unix.Errno) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(errno)}, // SECCOMP_RET_ERRNO
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},                 // SECCOMP_RET_ALLOW
	}
	require.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	require.NoError(t, unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0))
}

// A kernel, or container, without openat2 is told once, with what it needs, and is no
// problem of each file.
func TestReadWithoutOpenat2(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOSYS, unix.EPERM} {
		t.Run(errno.Error(), func(t *testing.T) {
			forbid(t, unix.SYS_OPENAT2, errno)
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(dir+"/f", []byte("f"), 0o600))
			root, err := os.Open(dir)
			require.NoError(t, err)
			defer root.Close()
			_, err = Read(t.Context(), root, Query{Sample: 1}, nil)
			require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported})
			_, err = Read(t.Context(), root, Query{Sample: 1, Path: "f"}, nil)
			require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotSupported})
		})
	}
}
