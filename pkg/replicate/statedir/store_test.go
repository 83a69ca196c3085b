package statedir

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
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

// A crash may cut the last line at any byte: the runs before it stay, and the
// next one is whole.
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
		require.Equal(t, 1, runs[0].Pruned, "cut at %d", cut)
		require.Equal(t, 3, runs[len(runs)-1].Pruned, "cut at %d", cut)
	}
}

func TestLogStaysBounded(t *testing.T) {
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
	a := st.Arrival("tank/a", "near")
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

// The directory of a user's job is the user's, and root reads it.
func TestNothingElseIsRead(t *testing.T) {
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
	_, err = s.State() // does not wait for a writer
	require.ErrorContains(t, err, "is not a file that zxfer wrote")
}

func TestLock(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	unlock, err := s.Lock(t.Context(), false)
	require.NoError(t, err)
	_, err = s.Lock(t.Context(), false)
	require.ErrorIs(t, err, ErrRunning)
	got := make(chan error)
	go func() {
		again, err := s.Lock(t.Context(), true)
		if err == nil {
			again()
		}
		got <- err
	}()
	select {
	case <-got:
		t.Fatal("a second run did not wait")
	case <-time.After(100 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.Lock(ctx, true)
	require.ErrorIs(t, err, context.DeadlineExceeded, "who waits can be interrupted")
	unlock()
	require.NoError(t, <-got)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	st := &State{Job: `a"b`, State: replicate.State{Datasets: map[string]*replicate.DatasetState{}}, LastRun: &Run{Started: at, Ended: at.Add(3 * time.Second), Outcome: outcome.Done}}
	st.Arrival("tank/a", "near").Success = at
	st.Arrival("tank/b", "near").Error = "broken"
	text := string(Metrics([]*State{st}).Bytes())
	for _, want := range []string{
		"# TYPE zxfer_replicate_last_run_success gauge\nzxfer_replicate_last_run_success{job=\"a\\\"b\"} 1\n",
		"zxfer_replicate_last_run_duration_seconds{job=\"a\\\"b\"} 3\n",
		fmt.Sprintf("zxfer_replicate_dataset_last_success_seconds{job=\"a\\\"b\",source=\"tank/a\",target=\"near\"} %d\n", at.Unix()),
		"zxfer_replicate_dataset_failed{job=\"a\\\"b\",source=\"tank/b\",target=\"near\"} 1\n",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "last_success_seconds{job=\"a\\\"b\",source=\"tank/b\"", "never is not 1970")
}

// What was private stays so, and what was not stays that.
func TestPutKeepsMode(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, Put(name, []byte("one")))
	for _, mode := range []os.FileMode{0o600, 0o666} {
		require.NoError(t, os.Chmod(name, mode))
		require.NoError(t, Put(name, []byte("two")))
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

// Until a file is whole there is none of its name, or the old one.
func TestFilesAreWhole(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "jobs.toml")
	require.NoError(t, Create(name, []byte("one"), 0o644))
	require.ErrorIs(t, Create(name, []byte("two"), 0o644), fs.ErrExist)
	require.NoError(t, write(name, []byte("two"), 0o600, true, func(dir *os.Root, from, to string) error {
		now, err := dir.ReadFile(to)
		require.NoError(t, err)
		require.Equal(t, "one", string(now))
		next, err := dir.ReadFile(from)
		require.NoError(t, err)
		require.Equal(t, "two", string(next))
		return dir.Rename(from, to)
	}))
	require.Error(t, write(name, nil, 0o600, true, func(*os.Root, string, string) error { return fs.ErrInvalid }))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "two", string(text))
	all, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	require.Len(t, all, 1, "nothing else is left")
}

// A stop explains what it interrupted, not what had failed or was refused before.
func TestConcludeOfAStoppedRun(t *testing.T) {
	t.Parallel()
	for dataset, want := range map[string]string{
		outcome.Done: outcome.Interrupted, outcome.Interrupted: outcome.Interrupted, outcome.Refused: outcome.Refused, outcome.Failed: outcome.Failed,
	} {
		r := &Run{Targets: []*TargetRun{{Outcome: outcome.Failed, Datasets: []DatasetRun{{Outcome: dataset}}}}}
		r.Conclude(time.Now(), nil, true)
		require.Equal(t, want, r.Outcome)
	}
}
