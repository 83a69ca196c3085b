package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
)

// openTerminal opens a terminal with the given number of columns. It returns the program's end
// of the terminal and a buffer with the program's output.
func openTerminal(t *testing.T, columns uint16) (tty *os.File, shown *lockedBuffer) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tty.Close() })
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	shown = &lockedBuffer{}
	go func() { _, _ = io.Copy(shown, master) }() // ends when the program and the test have closed it
	return tty, shown
}

// waitShown waits until the output on a terminal matches a pattern.
func waitShown(t *testing.T, shown fmt.Stringer, pattern string) {
	t.Helper()
	re := regexp.MustCompile(pattern)
	require.Eventually(t, func() bool { return re.MatchString(shown.String()) }, testenv.Timeout(), 50*time.Millisecond, "%s\n%q", pattern, shown)
}

// TestTerminalProgress copies a file with output to a terminal. It expects a progress bar with rate
// and ETA and one line for a signal, and no progress output afterwards.
func TestTerminalProgress(t *testing.T) {
	if testing.Short() {
		t.Skip("not at the quick level: copies for four seconds")
	}
	t.Parallel()
	tty, shown := openTerminal(t, 100)
	dir := t.TempDir()
	source, target := filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")
	require.NoError(t, os.WriteFile(source, bytes.Repeat([]byte("0123456789abcdef"), 12<<16), 0o600))
	var stdout bytes.Buffer
	cmd := exec.Command("zxfer", "dev", "--bwlimit", "3M", "--bs", "64KiB", source, target)
	cmd.Stdout, cmd.Stderr = &stdout, tty
	cmd.Env = append(os.Environ(), "TERM=xterm")
	require.NoError(t, cmd.Start())
	waitShown(t, shown, `a\.img +\[#+-+\] +\d+ % .* \d\.\d MiB/s +ETA \d+ s`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGUSR1))
	waitShown(t, shown, `a\.img: \d+\S* MiB of 12 MiB \(\d+ %\), \S+ MiB/s, ETA \d+ s, limited by bandwidth limit\r\n`)
	require.NoError(t, cmd.Wait(), "%q", shown)
	require.Regexp(t, `b\.img: 12 MiB in .*read back and verified`, stdout.String())
	waitShown(t, shown, `\r\x1b\[1A\x1b\[J$`) // the progress bar has been erased
}
