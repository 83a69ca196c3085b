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
	require.NoError(t, waitShownBefore(t, nil, shown, pattern))
}

// waitShownBefore is waitShown, but returns an error if ended is closed before the output matches.
func waitShownBefore(t *testing.T, ended <-chan struct{}, shown fmt.Stringer, pattern string) error {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for deadline := time.Now().Add(testenv.Timeout()); ; time.Sleep(50 * time.Millisecond) {
		over := false
		select {
		case <-ended:
			over = true
		default:
		}
		switch {
		case re.MatchString(shown.String()):
			return nil
		case over:
			return fmt.Errorf("the output ended without %s: %q", pattern, shown)
		}
		require.True(t, time.Now().Before(deadline), "%s\n%q", pattern, shown)
	}
}

// TestTerminalProgress copies a file with output to a terminal. It expects a progress bar with rate
// and ETA and one line for a signal, and no progress output afterwards.
func TestTerminalProgress(t *testing.T) {
	if testing.Short() {
		t.Skip("not at the quick level: copies for four seconds")
	}
	t.Parallel()
	dir := t.TempDir()
	source, target := filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")
	const mib = 12
	require.NoError(t, os.WriteFile(source, bytes.Repeat([]byte("0123456789abcdef"), mib<<16), 0o600))
	// The copy must last until the signal has arrived.
	testenv.Widen(t, 4*time.Second, func(lasts time.Duration) error {
		require.NoError(t, os.RemoveAll(target))
		tty, shown := openTerminal(t, 100)
		var stdout bytes.Buffer
		cmd := exec.Command("zxfer", "dev", "--bwlimit", fmt.Sprintf("%dKiB", mib<<10/int(lasts.Seconds())), "--bs", "64KiB", source, target)
		cmd.Stdout, cmd.Stderr = &stdout, tty
		cmd.Env = append(os.Environ(), "TERM=xterm")
		require.NoError(t, cmd.Start())
		ended, failure := make(chan struct{}), error(nil)
		go func() {
			defer close(ended)
			failure = cmd.Wait()
		}()
		err := waitShownBefore(t, ended, shown, `a\.img +\[#+-+\] +\d+ % .* \d\S* [KM]iB/s +ETA \d+ s`)
		if err == nil {
			_ = cmd.Process.Signal(syscall.SIGUSR1) // the copy may have ended
			err = waitShownBefore(t, ended, shown, `a\.img: \d+\S* MiB of 12 MiB \(\d+ %\), \S+ [KM]iB/s, ETA \d+ s, limited by bandwidth limit\r\n`)
		}
		<-ended
		require.NoError(t, failure, "%q", shown)
		require.Regexp(t, `b\.img: 12 MiB in .*read back and verified`, stdout.String())
		if err == nil {
			waitShown(t, shown, `\r\x1b\[1A\x1b\[J$`) // the progress bar has been erased
		}
		return err
	})
}
