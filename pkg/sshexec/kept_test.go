package sshexec

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestWhatWasCopiedIsToldOfAndRemoved(t *testing.T) {
	t.Parallel()
	copiesOften(t)
	for name, login := range map[string]string{
		"dash": "dash", "bash": "bash", "zsh": "zsh", "busybox": "busybox sh", "fish": "fish", "tcsh": "tcsh",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(strings.Fields(login)[0]); err != nil {
				t.Skipf("needs this login shell: %v", err)
			}
			o := newOther(t, login, "echo Welcome; printf '3\\t./x\\n'")
			kept, err := Keeps(t.Context(), o.Options)
			require.NoError(t, err)
			require.Empty(t, kept)
			c := o.connect()
			requireWorks(t, c)
			require.NoError(t, c.Close())
			require.NoError(t, os.WriteFile(filepath.Join(o.home, ".cache", "another's"), nil, 0o600))

			kept, err = Keeps(t.Context(), o.Options)
			require.NoError(t, err)
			require.Len(t, kept, 1)
			require.Equal(t, filepath.Join(o.home, ".cache", "zxfer"), kept[0].Dir)
			require.Equal(t, 1, kept[0].Builds)
			require.InDelta(t, len(standIn.bytes), kept[0].Bytes, 64<<10)

			require.NoError(t, RemoveKept(t.Context(), o.Options))
			require.NoDirExists(t, kept[0].Dir)
			require.FileExists(t, filepath.Join(o.home, ".cache", "another's"))
		})
	}
}

// What is no zxfer's stays, and so do others' directories and what links lead to.
func TestOnlyWhatWasCopiedIsRemoved(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	cache := filepath.Join(o.home, ".cache", "zxfer")
	id := strings.Repeat("0a", 32)
	for _, name := range []string{id, id + "0", "abc", "notes", "part.beta.1"} {
		require.NoError(t, os.MkdirAll(filepath.Join(cache, name), 0o700))
	}
	elsewhere := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(elsewhere, id), 0o700))
	require.NoError(t, os.Symlink(elsewhere, o.spare()))
	require.NoError(t, RemoveKept(t.Context(), o.Options))
	require.ElementsMatch(t, []string{id + "0", "abc", "notes"}, o.cache())
	require.DirExists(t, filepath.Join(elsewhere, id))

	require.NoError(t, os.Mkdir(filepath.Join(cache, id), 0o700))
	require.NoError(t, os.Chmod(cache, 0o770))
	kept, err := Keeps(t.Context(), o.Options)
	require.NoError(t, err)
	require.Empty(t, kept)
	require.NoError(t, RemoveKept(t.Context(), o.Options))
	require.Contains(t, o.cache(), id)
}

func TestARestrictedAccountRunsNoScript(t *testing.T) {
	t.Parallel()
	o := newOther(t, "sh", "")
	o.install()
	o.remote("exec zxfer agent")
	s, err := Run(t.Context(), o.Options, "echo no")
	require.NoError(t, err)
	_, _, _, err = s.Result()
	require.ErrorContains(t, err, "its account always starts an agent, which runs no script")
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	_, err = Keeps(t.Context(), o.Options)
	require.Error(t, err)
}
