package sshexec

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// After a timeout, no started process is left.
func TestAskEndsWhatItStarted(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	text, err := Ask(t.Context(), Options{}, "echo one; echo two")
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", text)
	text, err = Ask(t.Context(), Options{}, "exec cat /dev/zero")
	require.Error(t, err)
	require.Len(t, text, maxAnswer)

	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for began := time.Now(); time.Since(began) < testenv.Timeout(); time.Sleep(10 * time.Millisecond) {
			if b, err := os.ReadFile(pid); err == nil && len(b) > 0 {
				break
			}
		}
		cancel()
	}()
	_, err = Ask(ctx, Options{}, "sleep 100000 & echo $! >"+pid+"; wait")
	require.Error(t, err)
	b, err := os.ReadFile(pid)
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(n) }, testenv.Timeout(), 10*time.Millisecond)
}

// gone reports whether a process has ended, even if it was not waited for.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(pid, 0) != nil
}
