package filelock_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/filelock"
)

// TestUnlockDespiteCopiedDescriptor expects Close to release a lock although another process still has a
// copy of the descriptor, as after a fork.
func TestUnlockDespiteCopiedDescriptor(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.Create(name)
		require.NoError(t, err)
		return f
	}
	first, second := open(), open()
	require.NoError(t, filelock.Try(first))
	require.ErrorIs(t, filelock.Try(second), filelock.ErrLocked)
	copied, err := unix.Dup(int(first.Fd()))
	require.NoError(t, err)
	defer unix.Close(copied)
	require.NoError(t, filelock.Close(first))
	require.NoError(t, filelock.Try(second))
	require.NoError(t, filelock.Close(second))
	require.Error(t, filelock.Try(second), "it is closed")
}
