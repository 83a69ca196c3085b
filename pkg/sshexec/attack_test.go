package sshexec

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestMasterEndsWithZxfer runs the wrapper of a shared connection. It expects that the end
// of standard input, such as by kill -9 of zxfer, ends the command, and that the wrapper has the command's status.
func TestMasterEndsWithZxfer(t *testing.T) {
	t.Parallel()
	cleaned := shellquote.Join(filepath.Join(t.TempDir(), "cleaned"))
	cmd := exec.Command("/bin/sh", "-c", untilInputEnds(": >"+cleaned), "sh", "sh", "-c", "echo up; exec sleep 100000")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 3))
	require.NoError(t, err)
	require.NoError(t, in.Close())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(testenv.Timeout()):
		_ = cmd.Process.Kill()
		require.Fail(t, "it still runs")
	}
	require.FileExists(t, cleaned)

	// The shell reports a command that a signal ended on standard error, which nobody reads.
	require.NoError(t, os.Remove(cleaned))
	unread, stderr, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, unread.Close())
	cmd = exec.Command("/bin/sh", "-c", untilInputEnds(": >"+cleaned), "sh", "sh", "-c", "kill -TERM $$")
	cmd.Stderr = stderr
	require.Error(t, cmd.Run())
	require.NoError(t, stderr.Close())
	require.FileExists(t, cleaned)

	cmd = exec.Command("/bin/sh", "-c", untilInputEnds(":"), "sh", "sh", "-c", "exit 7")
	_, err = cmd.StdinPipe() // stays open
	require.NoError(t, err)
	err = cmd.Run()
	require.Error(t, err)
	require.Equal(t, 7, cmd.ProcessState.ExitCode())
}

// TestMasterEndsDespiteKilledShells kills the shells that watch a shared connection. It expects that zxfer
// asks ssh to exit.
func TestMasterEndsDespiteKilledShells(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "ssh")
	pids := shellquote.Join(filepath.Join(dir, "pids"))
	testenv.WriteProgram(t, program, `#!/bin/sh
for word; do
	case $word in ControlPath=*) socket=${word#*=};; -G) exit;; exit) read -r ssh shell <`+pids+`; kill $ssh; exit;; esac
done
echo $$ $PPID >`+pids+`
: >"$socket"
exec sleep 100000
`)
	run := t.TempDir()
	m, err := StartMaster(t.Context(), Options{Host: "beta", Command: shellquote.Join(program), runDirs: []string{run}})
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "pids"))
	require.NoError(t, err)
	var ssh, shell int
	_, err = fmt.Sscan(string(text), &ssh, &shell)
	require.NoError(t, err)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shell, shell))
	require.NoError(t, err)
	for _, word := range append(strings.Fields(string(children)), strconv.Itoa(shell)) {
		if pid, err := strconv.Atoi(word); err == nil && pid != ssh {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	require.NoError(t, m.Close())
	requireEnded(t, ssh)
	requireEmptyDir(t, run)
}

// TestHostThatReadsNothing expects that the end of the context aborts a pipe whose script was not sent.
func TestHostThatReadsNothing(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.remote(`: >"$HOME/up"; exec sleep 100000`)
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan *Pipe, 1)
	go func() {
		p, _ := OpenPipe(ctx, o.Options, strings.Repeat("# much\n", 1<<20))
		opened <- p
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(o.home, "up")); return err == nil }, testenv.Timeout(), time.Millisecond)
	cancel()
	select {
	case p := <-opened:
		if p == nil {
			return // canceled before the start
		}
		p.End(0)
		_, _, err := p.Result()
		require.Error(t, err)
	case <-time.After(testenv.Timeout()):
		require.Fail(t, "it still waits")
	}
}

// TestPipeScriptWithEndMarker expects a refusal: the launcher would run only the part before the marker.
func TestPipeScriptWithEndMarker(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	_, err := OpenPipe(t.Context(), o.Options, "echo '\nzxfer-run\n'")
	require.ErrorContains(t, err, "must not contain")
}

// TestEndlessBanner expects that a login shell that prints without end has no shell for scripts.
func TestEndlessBanner(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.remote("while :; do echo Welcome; done")
	s, err := Run(t.Context(), o.Options, "true")
	require.NoError(t, err)
	select {
	case <-s.Done():
	case <-time.After(testenv.Timeout()):
		s.End(0)
		require.Fail(t, "it is still read")
	}
	_, _, _, err = s.Result()
	require.ErrorIs(t, err, ErrNoShell)

	p, err := OpenPipe(t.Context(), o.Options, "true")
	require.NoError(t, err)
	_, err = p.Read(make([]byte, 1))
	require.Error(t, err)
	p.End(0)
	_, _, err = p.Result()
	require.Error(t, err)
}

// TestHostNamesAreNoOptions expects that no host name becomes an option of ssh.
func TestHostNamesAreNoOptions(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"-oProxyCommand=touch pwned", "--", "-N", ""} {
		_, err := Run(t.Context(), Options{Host: host}, "true")
		require.Error(t, err, host)
		_, err = OpenPipe(t.Context(), Options{Host: host}, "true")
		require.Error(t, err, host)
		_, err = StartMaster(t.Context(), Options{Host: host})
		require.Error(t, err, host)
	}
}
