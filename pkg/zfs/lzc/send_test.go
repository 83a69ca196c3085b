package lzc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// TestSend expects the output of the helper, whole or partial. If the helper writes nothing, zfs
// send is used.
func TestSend(t *testing.T) {
	const open = `read line
p=$(echo "$line" | sed 's/.*"process":\([0-9]*\).*/\1/') n=$(echo "$line" | sed 's/.*"pipe":\([0-9]*\).*/\1/')
`
	const refused = `echo '{"error":{"failures":[{"class":"StreamIOError","errno":5,"message":"I/O error"}],"more":0}}'`
	for name, tt := range map[string]struct {
		helper, want string
		kind         zfs.Kind
	}{
		"whole":             {open + "printf helper >/proc/$p/fd/$n; echo '{\"ok\":null}'", "helper", ""},
		"fails midway":      {open + "printf hel >/proc/$p/fd/$n; " + refused, "hel", zfs.PoolFault},
		"dies midway":       {open + "printf hel >/proc/$p/fd/$n; exit 1", "hel", zfs.Killed},
		"fails immediately": {open + refused, "zfs send -i @a tank/a@b", ""},
		"dies immediately":  {open + "exit 1", "zfs send -i @a tank/a@b", ""},
		"unknown operation": {open + "echo KeyError >&2; exit 1", "zfs send -i @a tank/a@b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fakePython(t, tt.helper+"\ncat >/dev/null\n")
			dir := t.TempDir()
			testenv.WriteProgram(t, filepath.Join(dir, "zfs"), "#!/bin/sh\nprintf %s \"zfs $*\"\n")
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			c := started(t)
			src, err := c.OpenSend(t.Context(), zfs.SendSpec{Dataset: "tank/a", From: "@a", To: "b"})
			require.NoError(t, err)
			got, err := io.ReadAll(src)
			require.Equal(t, tt.want, string(got))
			if tt.kind == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, &zfs.Error{Kind: tt.kind})
				require.Equal(t, err, src.Cause(err))
			}
			require.NoError(t, src.Close())
		})
	}
}

// TestSendRefusesOtherPipe runs the helper with a library that writes into the descriptor. The
// helper refuses a process that is not its parent, because a process ID may be reused, and a
// descriptor of another pipe.
func TestSendRefusesOtherPipe(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	const library = `import sys, types
exceptions = types.SimpleNamespace(ZFSError=KeyError, MultipleOperationsFailure=LookupError, ZFSGenericError=IndexError)
import os
sys.modules["libzfs_core"] = types.SimpleNamespace(exceptions=exceptions, lzc_exists=lambda n: True,
    lzc_send=lambda to, base, pipe, flags: os.write(pipe, to))
`
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var pipe unix.Stat_t
	require.NoError(t, unix.Fstat(int(w.Fd()), &pipe))
	_, foreign, err := os.Pipe()
	require.NoError(t, err)
	another := exec.Command("sleep", "100000") // it has the same pipe as descriptor 3
	another.ExtraFiles = []*os.File{w}
	require.NoError(t, another.Start())
	t.Cleanup(func() { _ = another.Process.Kill(); _ = another.Wait() })
	ask := func(process, fd int, inode uint64) string {
		cmd := exec.Command(python, "-c", library+script)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"op":"send","process":%d,"pipe":%d,"inode":%d,"from":"","to":"t","flags":[]}`+"\n", process, fd, inode))
		out, err := cmd.Output()
		require.NoError(t, err)
		_, answer, _ := strings.Cut(string(out), "\n") // after the greeting
		return answer
	}
	require.Contains(t, ask(another.Process.Pid, 3, pipe.Ino), `"errno": 3`)
	require.Contains(t, ask(os.Getpid(), int(w.Fd()), pipe.Ino+1), `"errno": 3`)
	require.Contains(t, ask(os.Getpid(), int(foreign.Fd()), pipe.Ino), `"errno": 3`)
	require.Equal(t, `{"ok": null}`+"\n", ask(os.Getpid(), int(w.Fd()), pipe.Ino))
	require.NoError(t, another.Process.Kill())
	_ = another.Wait()
	require.NoError(t, w.Close())
	got, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, "t", string(got), "only the last helper wrote")
}
