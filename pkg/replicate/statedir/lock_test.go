package statedir

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/filelock"
	"zxfer/pkg/testenv"
)

// TestMain holds the lock of a job until its input ends if RECORD_TEST_LOCK names a directory.
func TestMain(m *testing.M) {
	if dir := os.Getenv("RECORD_TEST_LOCK"); dir != "" {
		if _, err := Peek(filepath.Dir(dir), filepath.Base(dir)).Lock(context.Background(), false); err != nil {
			panic(err)
		}
		fmt.Println("locked")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// TestLockErrorNamesHolder lets another process hold the lock, and expects the error to name its
// command.
func TestLockErrorNamesHolder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // %d is the process ID
	}{
		{[]string{"/usr/bin/zxfer", "heal", "tank/a\x1b b", "vault"}, "zxfer heal 'tank/a? b' vault (process %d) is running, and keeps the job from running"},
		{[]string{"zxfer", "replicate", "prune", "mail"}, "zxfer replicate prune mail (process %d) is running, and keeps the job from running"},
		{[]string{"zxfer", "replicate", "run", "mail"}, "the job is running already"},
	} {
		s, err := Open(t.TempDir(), "mail")
		require.NoError(t, err)
		require.Empty(t, s.Holder())
		other := &exec.Cmd{Path: "/proc/self/exe", Args: c.args, Env: append(os.Environ(), "RECORD_TEST_LOCK="+s.dir)}
		in, err := other.StdinPipe()
		require.NoError(t, err)
		out, err := other.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, other.Start())
		_, err = io.ReadFull(out, make([]byte, len("locked\n")))
		require.NoError(t, err)
		if !s.Running() {
			t.Skip("the kernel's list of locks has another device for this file system")
		}
		want := c.want
		if len(c.args) != 4 || c.args[2] != "run" {
			want = fmt.Sprintf(want, other.Process.Pid)
		}
		_, err = s.Lock(t.Context(), false)
		require.ErrorIs(t, err, ErrRunning)
		require.EqualError(t, err, want)
		require.NoError(t, in.Close())
		require.NoError(t, other.Wait())
		unlock, err := s.Lock(t.Context(), false)
		require.NoError(t, err)
		unlock()
	}
}

// TestSharedLockFiles expects that other users cannot open the files whose locks concern all jobs. A lock of
// the directory, which they can open, has no effect.
func TestSharedLockFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	readable, err := os.Open(dir)
	require.NoError(t, err)
	defer readable.Close()
	require.NoError(t, filelock.Try(readable))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Timeout())
	defer cancel()
	require.NoError(t, WithLock(ctx, dir, func() error { return nil }))
	unlock, err := LockDisk(ctx, dir, 7, true)
	require.NoError(t, err)
	unlock()
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, f := range files {
		info, err := f.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, f.Name())
	}
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
	require.ErrorIs(t, err, context.DeadlineExceeded, "a waiting caller can be interrupted")
	unlock()
	require.NoError(t, <-got)
}

// TestTemporaryFilesOfKilledProcesses expects that the holder of a lock deletes what a killed process left of the files
// that the lock protects. Others may still be written, unless they are old.
func TestTemporaryFilesOfKilledProcesses(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir(), "home")
	require.NoError(t, err)
	put := func(name string, age time.Duration) {
		require.NoError(t, os.WriteFile(s.file(name), nil, 0o600))
		at := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(s.file(name), at, at))
	}
	names := func() (out []string) {
		all, err := os.ReadDir(s.dir)
		require.NoError(t, err)
		for _, e := range all {
			out = append(out, e.Name())
		}
		return out
	}
	for _, name := range []string{".state-1f.new", ".settled-2.new", ".runs-3.new", ".drills-4.new", ".pause-5.new", ".state-x.new", "state-1.new", ".new", "-1.new"} {
		put(name, 0)
	}
	put(".mail-6.new", 25*time.Hour)
	require.NoError(t, os.Mkdir(s.file(".state-7.new"), 0o700))
	unlock, err := s.Lock(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, []string{"-1.new", ".drills-4.new", ".new", ".pause-5.new", ".state-7.new", ".state-x.new", "lock", "state-1.new"}, names())
	unlock()
	unlock, err = s.LockDrill(t.Context())
	require.NoError(t, err)
	unlock()
	require.NotContains(t, names(), ".drills-4.new")
}
