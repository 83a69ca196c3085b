package testenv

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWriteProgram runs each program immediately while another goroutine starts processes.
func TestWriteProgram(t *testing.T) {
	t.Parallel()
	stop := Repeat(func() { _ = exec.Command("/bin/true").Run() })
	defer stop()
	dir := t.TempDir()
	for i := range Rounds(50, 300, 3000) {
		program := filepath.Join(dir, strconv.Itoa(i))
		WriteProgram(t, program, "#!/bin/sh\necho ran\n")
		out, err := exec.Command(program).Output()
		require.NoError(t, err)
		require.Equal(t, "ran\n", string(out))
	}
}
