package statedir

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/decide"
)

func TestPause(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
	none, err := Paused(dir, "home", now)
	require.NoError(t, err)
	require.Nil(t, none)
	s, err := Open(dir, "home")
	require.NoError(t, err)
	own := &decide.Pause{Since: now, Until: now.Add(time.Hour), TransfersOnly: true, Reason: "grün", By: "root"}
	require.NoError(t, s.SavePause(own))
	p, err := Paused(dir, "home", now)
	require.NoError(t, err)
	require.Equal(t, own, p)
	other, err := Paused(dir, "office", now)
	require.NoError(t, err)
	require.Nil(t, other)

	require.NoError(t, All(dir).SavePause(&decide.Pause{Since: now}))
	for _, job := range []string{"home", "office"} {
		p, err = Paused(dir, job, now)
		require.NoError(t, err)
		require.Equal(t, &decide.Pause{Since: now, All: true}, p)
	}
	info, err := os.Stat(filepath.Join(dir, "pause.json"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode(), "jobs of other users read it")

	// A damaged state does not matter.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "home", "state.json"), []byte("{"), 0o600))
	_, err = Paused(dir, "home", now)
	require.NoError(t, err)
}

// TestHostilePauseFile expects that a file that another user wrote cannot block or mislead root.
func TestHostilePauseFile(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte(`{"reason":"secret"}`), 0o600))
	for name, plant := range map[string]func(file string) error{
		"truncated": func(file string) error { return os.WriteFile(file, []byte(`{"since":"2026-`), 0o600) },
		"empty":     func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"large":     func(file string) error { return os.WriteFile(file, bytes.Repeat([]byte(" "), maxSmall+1), 0o600) },
		"a date":    func(file string) error { return os.WriteFile(file, []byte(`{"until":"12026-01-01T00:00:00Z"}`), 0o600) },
		"symlink":   func(file string) error { return os.Symlink(secret, file) },
		"fifo":      func(file string) error { return syscall.Mkfifo(file, 0o600) },
		"directory": func(file string) error { return os.Mkdir(file, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, err := Open(dir, "home")
			require.NoError(t, err)
			require.NoError(t, plant(s.file(pauseFile)))
			p, err := Paused(dir, "home", time.Now())
			require.Error(t, err, "%v", p)
			require.NotContains(t, err.Error(), "secret"+`"`)
			require.Equal(t, fault.Failed, fault.ClassOf(err))
			require.NotEmpty(t, fault.HintOf(err))
			if name != "directory" {
				require.NoError(t, s.SavePause(&decide.Pause{}), "a pause or resume replaces it")
				_, err = Paused(dir, "home", time.Now())
				require.NoError(t, err)
			}
		})
	}
	text, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, `{"reason":"secret"}`, string(text))
}
