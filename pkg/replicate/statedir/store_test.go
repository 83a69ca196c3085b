package statedir

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/fault"
)

func TestAppend(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	runs, err := s.Runs(10)
	require.NoError(t, err)
	require.Empty(t, runs)
	for i := range 5 {
		require.NoError(t, s.Append(&Run{Job: "home", Pruned: i}))
	}
	runs, err = s.Runs(3)
	require.NoError(t, err)
	require.Len(t, runs, 3)
	require.Equal(t, []int{2, 3, 4}, []int{runs[0].Pruned, runs[1].Pruned, runs[2].Pruned}, "the newest, oldest first")
}

// TestAppendAfterCrash expects that if a crash truncates the last line at any byte, earlier runs
// are still read and the next line is complete.
func TestAppendAfterCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(dir, "home")
	require.NoError(t, err)
	require.NoError(t, s.Append(&Run{Job: "home", Pruned: 1}))
	first, err := os.ReadFile(s.file("runs.jsonl"))
	require.NoError(t, err)
	require.NoError(t, s.Append(&Run{Job: "home", Pruned: 2, Error: "torn"}))
	whole, err := os.ReadFile(s.file("runs.jsonl"))
	require.NoError(t, err)
	for cut := len(first); cut < len(whole); cut++ {
		s, err := Open(dir, fmt.Sprintf("cut%d", cut))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(s.file("runs.jsonl"), whole[:cut], 0o640))
		require.NoError(t, s.Append(&Run{Job: "home", Pruned: 3}))
		runs, err := s.Runs(10)
		require.NoError(t, err)
		require.Equal(t, 1, runs[0].Pruned, "truncated at %d", cut)
		require.Equal(t, 3, runs[len(runs)-1].Pruned, "truncated at %d", cut)
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	long := make([]byte, 8<<20)
	for i := range long {
		long[i] = 'x'
	}
	for i := range 6 {
		require.NoError(t, s.Append(&Run{Pruned: i, Error: string(long)}))
	}
	info, err := os.Stat(s.file("runs.jsonl"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(maxLog+10<<20))
	runs, err := s.Runs(10)
	require.NoError(t, err)
	require.Less(t, len(runs), 6)
	require.Equal(t, 5, runs[len(runs)-1].Pruned)
}

func TestState(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	st, err := s.State()
	require.NoError(t, err)
	require.Equal(t, "home", st.Job)
	a := st.Copy("tank/a", "near")
	a.Success, a.BaseGUID = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC), 1<<63+1
	require.NoError(t, s.Save(st))
	again, err := s.State()
	require.NoError(t, err)
	require.Equal(t, st, again)
	left, err := filepath.Glob(filepath.Join(s.dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)

	require.NoError(t, os.WriteFile(s.file("state.json"), []byte("{"), 0o640))
	_, err = s.State()
	require.ErrorContains(t, err, "state.json")
}

// TestStateOfForeignFilesIsRefused expects that root, who reads directories of users, reads no other files.
func TestStateOfForeignFilesIsRefused(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(`{"job":"other"}`), 0o600))
	require.NoError(t, os.Symlink(secret, s.file("state.json")))
	_, err = s.State()
	require.ErrorIs(t, err, unix.ELOOP)
	require.NoError(t, os.Remove(s.file("state.json")))
	require.NoError(t, os.WriteFile(s.file("state.json"), []byte(`{"job":"other"}`), 0o600))
	st, err := s.State()
	require.NoError(t, err)
	require.Equal(t, "home", st.Job)
	require.NoError(t, os.Remove(s.file("state.json")))
	require.NoError(t, unix.Mkfifo(s.file("state.json"), 0o644))
	_, err = s.State() // does not block on a FIFO
	require.ErrorContains(t, err, "was not written by zxfer")
}

// FuzzStore expects that any content is a valid state of this job, or an error that names the file.
// Root reads directories that users own.
func FuzzStore(f *testing.F) {
	f.Add([]byte(`{"job":"other","datasets":null}`))
	f.Add([]byte(`{"job":"j","datasets":{"tank/a":null,"":{"targets":{"x":null}}}}` + "\n"))
	f.Add([]byte("{\"id\":\"1\"}\n\n{}\nnull\n[]\n{\"id\":"))
	f.Add([]byte("{\"targets\":[null]}"))
	f.Add([]byte("{\"last_run\":{\"targets\":[null,{}]}}"))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "j"), 0o700))
		for _, name := range []string{"state.json", "runs.jsonl"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "j", name), b, 0o600))
		}
		s := Peek(dir, "j")
		runs, err := s.Runs(3)
		require.NoError(t, err)
		require.LessOrEqual(t, len(runs), 3)
		for _, r := range runs {
			require.NotContains(t, r.Targets, (*TargetRun)(nil))
		}
		st, err := s.State()
		if err != nil {
			require.ErrorContains(t, err, filepath.Join(dir, "j", "state.json"))
			return
		}
		require.Equal(t, "j", st.Job)
		if st.LastRun != nil {
			require.NotContains(t, st.LastRun.Targets, (*TargetRun)(nil))
		}
		require.NotNil(t, st.Datasets)
		for name, d := range st.Datasets {
			require.NotNil(t, d, name)
			for target, a := range d.Targets {
				require.NotNil(t, a, target)
			}
		}
		require.NoError(t, s.Save(st))
		again, err := s.State()
		require.NoError(t, err)
		require.Equal(t, st, again)
	})
}

// TestOpenWithoutPermission expects the command that creates the directory, for an account that may not.
func TestOpenWithoutPermission(t *testing.T) {
	t.Parallel()
	denied := &fs.PathError{Op: "mkdir", Path: "/var/lib/zxfer/docs", Err: fs.ErrPermission}
	err := withCommand(denied, "/var/lib/zxfer", "docs", 1001)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.Equal(t, "run once as root: install -d -o 1001 -m 750 /var/lib/zxfer/docs", fault.HintOf(err))
	require.Empty(t, fault.HintOf(withCommand(denied, "/var/lib/zxfer", "docs", 0)))
	require.NoError(t, withCommand(nil, "/var/lib/zxfer", "docs", 1001))
}
