package sshexec

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kballard/go-shellquote"

	"zxfer/pkg/testenv"
)

func TestScriptArrivesUnchanged(t *testing.T) {
	t.Parallel()
	nasty := []string{"a b", "it's", `back\slash`, "two\nlines", "*", "$HOME `id` $(id)", "!!", "", "-n", "ä€", "tab\there", strings.Repeat("long", 40_000)}
	for _, login := range []string{"sh", "bash", "busybox sh"} {
		t.Run(login, func(t *testing.T) {
			t.Parallel()
			shell, _, _ := strings.Cut(login, " ")
			if _, err := exec.LookPath(shell); err != nil {
				t.Skipf("needs %v", err)
			}
			o := newOther(t, login, "echo Welcome to this host; printf 'no line end'")
			s, err := Run(t.Context(), o.Options, "printf '%s\\0' "+shellquote.Join(nasty...)+" </dev/null")
			require.NoError(t, err)
			out, _, status, err := s.Result()
			require.NoError(t, err)
			require.Zero(t, status)
			require.Equal(t, nasty, strings.Split(strings.TrimSuffix(out, "\x00"), "\x00"))
		})
	}
}

func TestScriptResult(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		remote, script string
		stderr         string
		status         int
		err            string
	}{
		"exit status 0":           {`exec sh -c "$command"`, "echo out; echo oops >&2", "oops", 0, ""},
		"exit status 3":           {`exec sh -c "$command"`, "echo oops >&2; exit 3", "oops", 3, ""},
		"killed remotely":         {`exec sh -c "$command"`, "sh -c 'kill -9 $$'", "Killed", 137, ""},
		"several lines":           {`exec sh -c "$command"`, "for i in 1 2 3 4 5 6 7; do echo $i >&2; done", "1\n2\n3\n4\n5\n6\n7", 0, ""},
		"not a shell":             {`echo This account is not available.; exit 1`, "true", "", 0, "beta: no shell ran the script: sh: exit status 1: no error message"},
		"no output":               {`exit 0`, "true", "", 0, "beta: no shell ran the script; output: nothing"},
		"truncated script":        {`head -c 10 | sh -c "$command"`, "echo this is long enough to be cut", "", 0, "beta: "},
		"contains the end marker": {`exec sh -c "$command"`, "echo '\nzxfer-run\n'", "", 0, "must not contain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOther(t, "sh", "")
			o.remote(c.remote)
			s, err := Run(t.Context(), o.Options, c.script)
			var stderr string
			var status int
			if err == nil {
				_, stderr, status, err = s.Result()
			}
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.stderr, stderr)
			require.Equal(t, c.status, status)
		})
	}
}

// TestScriptOutputIsBounded expects that endless output of a host does not exhaust this host's
// memory.
func TestScriptOutputIsBounded(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	s, err := Run(t.Context(), o.Options, "yes; exit 0")
	require.NoError(t, err)
	select {
	case <-s.Done():
	case <-time.After(testenv.Timeout()):
		s.End(0)
		require.Fail(t, "it is still read")
	}
	out, _, _, err := s.Result()
	require.ErrorContains(t, err, "beta: its output is longer than")
	require.Empty(t, out)
	require.LessOrEqual(t, s.out.length, maxOutput)
}

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestLateReaderGetsWholeOutput reads the output quitTimeout after the end of the command, as a busy
// host may.
func TestLateReaderGetsWholeOutput(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	p, err := OpenPipe(t.Context(), o.Options, `printf x; while [ ! -e "$HOME/go" ]; do sleep 0.01; done; head -c 60000 /dev/zero`)
	require.NoError(t, err)
	got := 0
	p.drain(writerFunc(func(b []byte) (int, error) {
		if got == 0 {
			assert.NoError(t, os.WriteFile(filepath.Join(o.home, "go"), nil, 0o600))
			<-p.waited
			time.Sleep(quitTimeout * 5 / 4)
		}
		got += len(b)
		return len(b), nil
	}))
	_, status, err := p.Result()
	require.NoError(t, err)
	require.Zero(t, status)
	require.Equal(t, 60001, got)
}

func TestScriptEndsWithContextOrClient(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Run(ctx, o.Options, "exec sleep 100000")
	require.NoError(t, err)
	cancel()
	_, _, _, err = s.Result()
	require.ErrorIs(t, err, context.Canceled)

	s, err = Run(t.Context(), o.Options, `: >"$HOME/up"; read -r beat || echo gone`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(o.home, "up")); return err == nil }, testenv.Timeout(), time.Millisecond)
	s.End(testenv.Timeout())
	out, _, status, err := s.Result()
	require.NoError(t, err)
	require.Zero(t, status)
	require.Equal(t, "gone\n", out)
}

func TestScriptsNeverPromptForPassword(t *testing.T) {
	t.Parallel()
	o := Options{Host: "h", batch: true}
	argv, err := o.argv("cmd")
	require.NoError(t, err)
	require.Contains(t, strings.Join(argv, " "), "-o BatchMode=yes")
	require.NotContains(t, launcher, "'")
	require.NotContains(t, launcher, "!")
	require.NotContains(t, launcher, "\n")
}
