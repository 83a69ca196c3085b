package sshexec

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// waitingCall starts a call that waits for a connection.
func waitingCall(t *testing.T, s hosts.Host) <-chan error {
	t.Helper()
	ticket, err := hosts.Call(t.Context(), s, hosts.OpOffer, tcp.Offer{Mode: tcp.Signed, Streams: 1, Address: "127.0.0.1", Deadline: 10 * time.Minute})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := hosts.Call(t.Context(), s, hosts.OpTransfer, hosts.Task{From: hosts.Accept{Session: ticket.Session}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: "none/none"}}})
		ended <- err
	}()
	return ended
}

func TestKilledAgentIsNoticedImmediately(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	r := o.connect()
	call := waitingCall(t, r)
	require.NoError(t, syscall.Kill(o.pid(), syscall.SIGKILL))
	err := <-call
	require.ErrorIs(t, err, hosts.ErrLost)
	require.ErrorContains(t, err, "beta: ")
	require.NotContains(t, err.Error(), "no message", "it is noticed by the end of its output")
	require.NoError(t, r.Close())
}

func TestAgentEndsWithInput(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	r := o.connect()
	call := waitingCall(t, r)
	pid := o.pid()
	require.NoError(t, r.Close())
	require.ErrorIs(t, <-call, hosts.ErrLost)
	requireEnded(t, pid)
}

func TestAgentEndsIfClientIsStopped(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "TEST_SILENCE=300ms; export TEST_SILENCE")
	o.install()
	c, err := Agent(t.Context(), o.Options) // no pings are sent
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, c)
	require.NoError(t, err)
	requireEnded(t, o.pid())
	require.ErrorContains(t, c.Close(), "no message for 300ms: connection lost")
	require.Contains(t, o.logged(), "beta: zxfer: no message", "output of the remote host is logged")
}

func TestStoppedAgentIsKilled(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	c, err := Agent(t.Context(), o.Options)
	require.NoError(t, err)
	pid := o.pid()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.NoError(t, c.shutdown(100*time.Millisecond), "a killed process is not a failure")
	requireEnded(t, pid)
}

// TestLeaveDoesNotWait stops the remote shell, so that it ends after Leave has returned.
func TestLeaveDoesNotWait(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	c, err := Agent(t.Context(), o.Options)
	require.NoError(t, err)
	pid := o.pid()
	c.quit = testenv.Timeout() // nothing kills it before
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	c.Leave()
	require.NoError(t, syscall.Kill(pid, 0), "it still exists")
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	requireEnded(t, pid)
	require.NoError(t, c.Close(), "a signal of this process is not a failure")
}

// TestTerminalInterruptDoesNotReachRemoteShell expects that ^C, which reaches the whole
// process group of the terminal, does not end the connection. zxfer needs it to end the remote
// processes.
func TestTerminalInterruptDoesNotReachRemoteShell(t *testing.T) {
	t.Parallel()
	// This checks the remote shell before it becomes the agent, because a Go program always handles
	// SIGQUIT (runtime.initsig).
	o := newOther(t, "sh", `cat /proc/$$/status >"$HOME/status"`)
	o.install()
	r := o.connect()
	status, err := os.ReadFile(filepath.Join(o.home, "status"))
	require.NoError(t, err)
	ignored := signals(t, string(status), "SigIgn")
	require.NotZero(t, ignored&(1<<(syscall.SIGINT-1)))
	require.NotZero(t, ignored&(1<<(syscall.SIGQUIT-1)))
	require.Zero(t, ignored&(1<<(syscall.SIGTERM-1)), "it still ends on request")

	require.NoError(t, syscall.Kill(o.pid(), syscall.SIGINT))
	requireWorks(t, r)
}

// signals reads a signal mask in /proc/PID/status.
func signals(t *testing.T, status, mask string) uint64 {
	t.Helper()
	_, rest, found := strings.Cut(status, mask+":\t")
	require.True(t, found)
	word, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseUint(word, 16, 64)
	require.NoError(t, err)
	return n
}

func TestRemoteShellUsesEnglish(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.remote(`echo "it is $LC_ALL" >&2; exit 1`)
	_, err := Agent(t.Context(), o.Options)
	require.ErrorContains(t, err, "it is C")
}

func TestTail(t *testing.T) {
	t.Parallel()
	var logged []string
	tail := &tail{log: func(s string) { logged = append(logged, s) }, maxLines: tailLines}
	for _, s := range []string{"one\ntw", "o\n\n \n", "3\n4\n5\n6", "\nopen"} {
		n, err := tail.Write([]byte(s))
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	require.Equal(t, []string{"one", "two", "3", "4", "5", "6"}, logged)
	require.Equal(t, "3; 4; 5; 6; open", tail.String())
	long := make([]byte, 3000)
	for i := range long {
		long[i] = byte('a' + i%26)
	}
	_, _ = tail.Write(long)
	_ = tail.String()
	require.Equal(t, string(long), logged[7]+logged[8]+logged[9], "long lines are cut, not lost")
}

// TestAskKillsStartedProcesses expects that after a timeout, no started process is left.
func TestAskKillsStartedProcesses(t *testing.T) {
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
	require.Eventually(t, func() bool { return hasEnded(n) }, testenv.Timeout(), 10*time.Millisecond)
}

// hasEnded reports whether a process has ended, even if it was not waited for.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || strings.Contains(string(stat), ") Z ") || syscall.Kill(pid, 0) != nil
}

// TestTailHoldsLines expects that before the connection works, only the lines that the error does not
// repeat are logged.
func TestTailHoldsLines(t *testing.T) {
	t.Parallel()
	var logged []string
	tail := &tail{log: func(s string) { logged = append(logged, s) }, maxLines: 2, hold: true}
	_, _ = tail.Write([]byte("one\ntwo\nthree\n"))
	require.Equal(t, []string{"one"}, logged)
	tail.release()
	require.Equal(t, []string{"one", "two", "three"}, logged)
	_, _ = tail.Write([]byte("four\n"))
	require.Equal(t, []string{"one", "two", "three", "four"}, logged)
}
