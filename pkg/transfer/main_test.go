package transfer_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// noVmsplice, in the environment, makes the kernel refuse vmsplice(2), like the sandbox of a
// container. The exit status noFilter means that the kernel has no filters, as in an emulator.
const (
	noVmsplice = "ZXFER_TEST_NO_VMSPLICE"
	noFilter   = 77
)

// TestMain runs more tests in parallel than there are cores, because most of them wait.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(noVmsplice) != "" {
		if err := refuseVmsplice(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(noFilter)
		}
	}
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set {
		if err := flag.Set("test.parallel", "12"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// refuseVmsplice makes vmsplice fail with EPERM in all threads of this process.
func refuseVmsplice() error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // number of the system call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_VMSPLICE},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	return nil
}

// TestPipesWithoutVmsplice expects that zxfer copies if the kernel refuses to lend pages.
func TestPipesWithoutVmsplice(t *testing.T) {
	t.Parallel()
	if os.Getenv(noVmsplice) != "" {
		t.Skip("this is the child")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPipes$/^(signed|tls)$/1/7340037")
	cmd.Env = append(os.Environ(), noVmsplice+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == noFilter {
		t.Skipf("no filter for system calls: %s", out)
	}
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "no tests to run")
}
