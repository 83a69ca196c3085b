package lzc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// fakePython puts a python3 on PATH that greets and then runs the given shell script, so that tests
// of the pipe to the helper need no ZFS. PATH belongs to the process, so these tests run
// sequentially.
func fakePython(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	text := "#!/bin/sh\necho '{\"ok\":{\"pyzfs\":\"9.9\",\"python\":\"3.0\"}}'\n" + script
	testenv.WriteProgram(t, filepath.Join(dir, "python3"), text)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func started(t *testing.T) *Client {
	t.Helper()
	c, err := Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestStartUnavailable(t *testing.T) {
	t.Run("no python", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := Start(t.Context())
		require.EqualError(t, err, "python3 is not installed")
	})
	t.Run("no module", func(t *testing.T) {
		dir := t.TempDir()
		said := "#!/bin/sh\necho '{\"unavailable\": \"ModuleNotFoundError: No module named x\"}'\n"
		testenv.WriteProgram(t, filepath.Join(dir, "python3"), said)
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		_, err := Start(t.Context())
		require.ErrorContains(t, err, "No module named x")
	})
	t.Run("traceback", func(t *testing.T) {
		dir := t.TempDir()
		testenv.WriteProgram(t, filepath.Join(dir, "python3"), "#!/bin/sh\necho Traceback: >&2; echo 'OSError: broken' >&2; exit 1\n")
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		_, err := Start(t.Context())
		require.ErrorContains(t, err, "OSError: broken")
	})
}

func TestName(t *testing.T) {
	fakePython(t, "cat >/dev/null")
	require.Equal(t, "libzfs_core (pyzfs 9.9, python 3.0)", started(t).Name())
}

// TestCrash expects that if a helper dies during a request, that call fails, although it may have
// been carried out. The next call starts a new helper.
func TestCrash(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "crashed")
	fakePython(t, fmt.Sprintf("read line\nif [ ! -e %[1]s ]; then : >%[1]s; echo 'MemoryError' >&2; exit 1; fi\necho '{\"ok\":null}'; cat >/dev/null\n", mark))
	c := started(t)
	err := c.Snapshot(t.Context(), []string{"tank/a@x"})
	require.ErrorContains(t, err, "zfs snapshot tank/a@x: python helper ended unexpectedly: MemoryError")
	require.NoError(t, c.Snapshot(t.Context(), []string{"tank/a@x"}))
}

// TestHelperDiesIdle expects that a helper that died while idle is replaced without an error.
func TestHelperDiesIdle(t *testing.T) {
	fakePython(t, "while read line; do echo '{\"ok\":null}'; done")
	c := started(t)
	require.NoError(t, c.Snapshot(t.Context(), []string{"tank/a@x"}))
	old := c.helper
	require.NoError(t, syscall.Kill(old.cmd.Process.Pid, syscall.SIGKILL))
	<-old.exited
	require.NoError(t, c.Snapshot(t.Context(), []string{"tank/a@x"}))
	require.NotSame(t, old, c.helper)
}

func TestMalformedReply(t *testing.T) {
	fakePython(t, "read line; echo nonsense; cat >/dev/null")
	require.ErrorContains(t, started(t).Snapshot(t.Context(), []string{"tank/a@x"}), "python helper: not a reply: ")
}

// TestCancel expects that a cancelled call returns immediately, also if it waits for another one.
func TestCancel(t *testing.T) {
	fakePython(t, "read line; exec sleep 100000")
	c := started(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	errs := make(chan error, 2)
	for range 2 {
		go func() { errs <- c.Snapshot(ctx, []string{"tank/a@x"}) }()
	}
	for range 2 {
		require.ErrorIs(t, <-errs, context.DeadlineExceeded)
	}
}

func TestClose(t *testing.T) {
	fakePython(t, "read line; exec sleep 100000")
	c, err := Start(t.Context())
	require.NoError(t, err)
	h := c.helper
	failed := make(chan error, 1)
	go func() { failed <- c.Snapshot(t.Context(), []string{"tank/a@x"}) }()
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, c.Close())
	require.Error(t, <-failed)
	<-h.exited
	require.Error(t, c.Snapshot(t.Context(), []string{"tank/a@x"}))
}

func TestEndsWithContext(t *testing.T) {
	fakePython(t, "cat >/dev/null")
	ctx, cancel := context.WithCancel(t.Context())
	c, err := Start(ctx)
	require.NoError(t, err)
	defer c.Close()
	cancel()
	select {
	case <-c.helper.exited:
	case <-time.After(testenv.Timeout()):
		t.Fatal("helper outlives its context")
	}
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	require.Equal(t, stream{Flags: []string{}, Steps: [][2]string{{"", "t/a@x"}}},
		translate(zfs.SendSpec{Dataset: "t/a", To: "x"}))
	require.Equal(t, stream{Flags: []string{"raw", "large_blocks", "embedded_data", "compress"}, Steps: [][2]string{{"t/a#v", "t/a@x"}}},
		translate(zfs.SendSpec{Dataset: "t/a", From: "#v", To: "x", Flags: zfs.StreamFlags{Raw: true}}))
	require.Equal(t, stream{Flags: []string{"large_blocks"}, Steps: [][2]string{{"t/o@u", "t/a@v"}, {"t/a@v", "t/a@w"}, {"t/a@w", "t/a@x"}}},
		translate(zfs.SendSpec{Dataset: "t/a", From: "t/o@u", Through: []string{"v", "w"}, To: "x", Flags: zfs.StreamFlags{LargeBlocks: true}}))
}

func TestZFSErrors(t *testing.T) {
	t.Parallel()
	require.NoError(t, zfsErrors(zfs.OpHold, nil, nil))
	plain := errors.New("plain")
	require.Equal(t, plain, zfsErrors(zfs.OpHold, nil, plain))

	err := zfsErrors(zfs.OpDestroy, []string{"t@a", "t@b"}, &failures{More: 2, Failures: []failure{
		{Class: "SnapshotIsHeld", Errno: int(syscall.EBUSY), Message: "Snapshot is held", Name: "t@a"},
		{Class: "SnapshotIsCloned", Errno: int(syscall.EEXIST), Message: "Snapshot is cloned", Name: "t@b"},
	}})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Busy})
	require.EqualError(t, err, "zfs destroy t@a: snapshot is held\nzfs destroy t@b: snapshot is cloned\nand 2 more")

	err = zfsErrors(zfs.OpSnapshot, []string{"t/a@a", "t/b@a", "t/c@a", "t/d@a"}, &failures{Failures: []failure{{Errno: int(syscall.EPERM), Message: "Operation not permitted"}}})
	var e *zfs.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, zfs.Permission, e.Kind)
	require.Equal(t, "t/a@a, t/b@a, t/c@a and 1 more", e.Subject)
	require.Contains(t, e.Hint, "zfs allow")

	for _, test := range []struct {
		op   string
		f    failure
		want zfs.Kind
	}{
		{zfs.OpSnapshot, failure{Errno: int(syscall.EEXIST)}, zfs.Exists},
		{zfs.OpSnapshot, failure{Errno: int(syscall.ENOENT)}, zfs.NotFound},
		{zfs.OpSnapshot, failure{Errno: int(syscall.EROFS)}, zfs.PoolFault},
		{zfs.OpSnapshot, failure{Errno: int(syscall.EAGAIN)}, zfs.PoolFault},
		{zfs.OpSnapshot, failure{Errno: int(syscall.ENOSPC)}, zfs.NoSpace},
		{zfs.OpSnapshot, failure{Errno: int(syscall.ENAMETOOLONG)}, zfs.InvalidName},
		{zfs.OpBookmark, failure{Errno: int(syscall.ENOTSUP)}, zfs.Feature},
		{zfs.OpEstimate, failure{Errno: int(syscall.EXDEV)}, zfs.NoBase},
		{zfs.OpEstimate, failure{Errno: int(syscall.EINVAL), Class: "NameInvalid"}, zfs.NotFound},
		{zfs.OpDestroy, failure{Errno: int(syscall.EXDEV), Class: "PoolNotFound"}, zfs.NotFound},
		{zfs.OpSnapshot, failure{Errno: 1024}, zfs.Unknown},
	} {
		require.Equal(t, test.want, test.f.kind(test.op), "%s %v", test.op, test.f)
	}
}
