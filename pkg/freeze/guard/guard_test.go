package guard

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/testenv"
)

// logged returns the first words in the log of the scripts.
func logged(t *testing.T, dir string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "log"))
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		require.Equal(t, []string{f[0], "j", "s", f[1]}, f[2:])
		out = append(out, f[0]+" "+f[1])
	}
	return out
}

func begin(t *testing.T, q *freeze.Request) *Guard {
	t.Helper()
	g, err := Start(t.Context(), filepath.Join(t.TempDir(), "notes"), q)
	require.NoError(t, err)
	return g
}

func touch(t *testing.T, dir, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
}

func requireThawed(t *testing.T, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		all := logged(t, dir)
		return len(all) > 0 && strings.HasPrefix(all[len(all)-1], "thaw ")
	}, testenv.Timeout(), 10*time.Millisecond)
}

// requireLog compares the log of the scripts. The order of thaws may vary.
func requireLog(t *testing.T, dir string, want ...string) {
	t.Helper()
	got := logged(t, dir)
	thaws := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, "thaw ") })
	if thaws >= 0 {
		slices.Sort(got[thaws:])
	}
	require.Equal(t, want, got)
}

// TestFreezeAndThaw expects that applications are frozen in order and thawed together, with and
// without a snapshot.
func TestFreezeAndThaw(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := begin(t, request(script(dir, "a"), script(dir, "b")))
	require.False(t, g.Stopped)
	require.Equal(t, []string{"freeze a", "freeze b"}, logged(t, dir))
	for _, o := range g.Finish() {
		require.Empty(t, o.Error)
		require.Positive(t, o.Seconds)
	}
	requireLog(t, dir, "freeze a", "freeze b", "thaw a", "thaw b")

	dir = t.TempDir()
	for _, o := range begin(t, request(script(dir, "a"), script(dir, "b"))).Cancel() {
		require.Contains(t, o.Error, "were not taken")
		require.False(t, o.ThawFailed)
	}
	requireLog(t, dir, "freeze a", "freeze b", "thaw a", "thaw b")
}

// TestCannotFreeze expects that a failed freeze is thawed too, because it may have been partial. If
// the freeze is required, the guard stops, otherwise the snapshot is only not verified.
func TestCannotFreeze(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	touch(t, dir, "b.freeze")
	q := request(script(dir, "a"), script(dir, "b"), script(dir, "c"))
	g := begin(t, q)
	require.True(t, g.Stopped)
	require.Empty(t, g.Outcomes[0].Error)
	require.Contains(t, g.Outcomes[1].Error, "exit status 1")
	g.Cancel()
	requireLog(t, dir, "freeze a", "freeze b", "thaw a", "thaw b")

	q.Applications[1].Required = false
	g = begin(t, q)
	require.False(t, g.Stopped)
	o := g.Finish()
	require.Empty(t, o[0].Error+o[2].Error)
	require.Contains(t, o[1].Error, "exit status 1")
}

// TestCannotThaw expects a report of a failed thaw, which states that the application may still be
// frozen.
func TestCannotThaw(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	touch(t, dir, "a.thaw")
	o := begin(t, request(script(dir, "a"))).Finish()
	require.Contains(t, o[0].Error, "thaw")
	require.Contains(t, o[0].Hint, "/bin/sh")
	require.True(t, o[0].ThawFailed)
}

// TestTimeout expects that an application is thawed at its timeout without any message. A later
// snapshot is not verified.
func TestTimeout(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	q := request(script(dir, "a"))
	q.Applications[0].Timeout = 500 * time.Millisecond
	g := begin(t, q)
	requireThawed(t, dir)
	require.Contains(t, g.Finish()[0].Error, "timeout of 500ms")

	dir = t.TempDir()
	q = request(script(dir, "a"))
	q.Applications[0].Freeze, q.Applications[0].Timeout = []string{"/bin/sleep", "100000"}, 300*time.Millisecond
	g = begin(t, q)
	require.True(t, g.Stopped)
	require.Contains(t, g.Outcomes[0].Error, "timeout of 300ms")
	g.Cancel()
	require.Equal(t, []string{"thaw a"}, logged(t, dir))
}

// TestRunKilled kills the run, and expects the watchdog to thaw.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := exec.Command("/proc/self/exe")
	run.Env = append(os.Environ(), "GUARD_TEST_RUN="+dir)
	out, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "frozen\n", line)
	require.Equal(t, []string{"freeze a"}, logged(t, dir))
	require.NoError(t, run.Process.Kill())
	requireThawed(t, dir)
	require.Eventually(t, func() bool { // the note is empty, so no later run thaws again
		notes, _ := filepath.Glob(filepath.Join(dir, "notes", notePrefix+"*"))
		s, err := os.Stat(notes[0])
		return err == nil && s.Size() == 0
	}, testenv.Timeout(), 10*time.Millisecond)
	require.Error(t, run.Wait())
}

// TestWatchdogKilled kills the watchdog, and expects the run to thaw immediately.
func TestWatchdogKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	g := begin(t, request(script(dir, "a"), script(dir, "b")))
	g.kill()
	for _, o := range g.Finish() {
		require.Contains(t, o.Error, "watchdog ended")
		require.False(t, o.ThawFailed)
	}
	requireLog(t, dir, "freeze a", "freeze b", "thaw a", "thaw b")
}

// TestBothKilled kills both, and expects the next run to thaw.
func TestBothKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := exec.Command("/proc/self/exe")
	run.Env = append(os.Environ(), "GUARD_TEST_RUN="+dir)
	out, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	in := bufio.NewReader(out)
	for range 2 {
		_, err = in.ReadString('\n')
		require.NoError(t, err)
	}
	notes, err := filepath.Glob(filepath.Join(dir, "notes", notePrefix+"*"))
	require.NoError(t, err)
	require.Len(t, notes, 1)
	thawNotes(filepath.Join(dir, "notes"))
	require.Equal(t, []string{"freeze a"}, logged(t, dir), "the processes run")

	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", run.Process.Pid))
	require.NoError(t, err)
	watchdog := 0
	for _, thread := range threads {
		children, err := os.ReadFile(thread)
		require.NoError(t, err)
		if f := strings.Fields(string(children)); len(f) > 0 {
			watchdog, err = strconv.Atoi(f[0])
			require.NoError(t, err)
		}
	}
	require.NotZero(t, watchdog)
	require.NoError(t, run.Process.Signal(syscall.SIGSTOP)) // the run does not notice the watchdog's exit
	require.NoError(t, syscall.Kill(watchdog, syscall.SIGKILL))
	require.NoError(t, run.Process.Kill())
	require.Error(t, run.Wait())
	require.Equal(t, []string{"freeze a"}, logged(t, dir))
	require.Eventually(t, func() bool { // the watchdog's exit takes a moment
		thawNotes(filepath.Join(dir, "notes"))
		_, err := os.Stat(notes[0])
		return err != nil
	}, testenv.Timeout(), 10*time.Millisecond)
	require.Equal(t, []string{"freeze a", "thaw a"}, logged(t, dir))
}

// TestThawHint expects the hint after a failed thaw to contain a complete command.
func TestThawHint(t *testing.T) {
	t.Parallel()
	c := &command{&freeze.Spec{Thaw: []string{"/bin/false", "a b"}}, environment{"ZXFER_JOB=j"}}
	require.Equal(t, "check that the application runs; otherwise run: env ZXFER_JOB=j ZXFER_HOOK=thaw /bin/false 'a b'", fault.HintOf(c.thaw(t.Context())))
	c.RunAs = "nosuch"
	require.Contains(t, fault.HintOf(c.thaw(t.Context())), "run: runuser -u nosuch -- env")
}
