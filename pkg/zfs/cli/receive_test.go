package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestOnlyProgramsGetLentBlocks expects that a script in place of zfs, which may splice its input, gets no lent blocks.
func TestOnlyProgramsGetLentBlocks(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	script := filepath.Join(t.TempDir(), "zfs")
	testenv.WriteProgram(t, script, "#!/bin/sh\npv | exec /usr/sbin/zfs \"$@\"\n")
	require.True(t, isProgram(self))
	require.False(t, isProgram(script))
	require.False(t, isProgram(filepath.Join(t.TempDir(), "none")))
	require.False(t, isProgram(t.TempDir()))
}
