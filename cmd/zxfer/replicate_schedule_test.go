package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestEditKeepsJobLate expects that a job that never ran is still late after an edit of the job file,
// without a timer file, until its schedule changes.
func TestEditKeepsJobLate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	jobs, state := filepath.Join(dir, "jobs.toml"), filepath.Join(dir, "state")
	eight := time.Date(2026, 11, 28, 8, 30, 0, 0, time.UTC)
	edit := func(schedule, comment string, at time.Time) {
		text := "# " + comment + "\n[[job]]\nname = \"never-installed\"\nsource = \"tank/home\"\nschedule = \"" + schedule + "\"\n" +
			"snapshots = { adopt = [\"*\"] }\ntarget = [{ name = \"vault\", to = \"vault/home\" }]\n"
		require.NoError(t, os.WriteFile(jobs, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(jobs, at, at))
	}
	late := func(at time.Time) bool {
		var out, errs bytes.Buffer
		execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: func() time.Time { return at }},
			[]string{"replicate", "status", "--json", "--config", jobs, "--state-dir", state})
		require.Contains(t, out.String(), `"job":"never-installed"`, errs.String())
		return strings.Contains(out.String(), `"state":"late"`)
	}
	require.NoError(t, os.Mkdir(state, 0o700))
	edit("hourly", "one", eight)
	require.False(t, late(eight.Add(10*time.Minute)))
	require.True(t, late(eight.Add(2*time.Hour)))
	edit("hourly", "two", eight.Add(2*time.Hour))
	require.True(t, late(eight.Add(2*time.Hour+time.Minute)), "an edit is no run")
	edit("daily", "three", eight.Add(3*time.Hour))
	require.False(t, late(eight.Add(3*time.Hour+time.Minute)), "another schedule starts anew")
	require.NoError(t, os.WriteFile(filepath.Join(state, "schedules.json"), []byte("{"), 0o600))
	require.False(t, late(eight.Add(4*time.Hour)), "a damaged record has no times")
}

// TestStateDirectoryOfOtherAccount expects the command that creates the state directory of a job of
// another account, without systemd.
func TestStateDirectoryOfOtherAccount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	jobs := filepath.Join(dir, "jobs.toml")
	require.NoError(t, os.WriteFile(jobs, []byte("[[job]]\nname = \"docs\"\nuser = \"op\"\nsource = \"tank/docs\"\nschedule = \"hourly\"\n"+
		"snapshots = { adopt = [\"*\"] }\ntarget = [{ name = \"vault\", to = \"vault/docs\" }]\n"), 0o600))
	cron := func() string {
		var out, errs bytes.Buffer
		code := execute(context.Background(), &app{stdin: bytes.NewReader(nil), stdout: &out, stderr: &errs, now: time.Now},
			[]string{"replicate", "install", "--cron", "--config", jobs, "--binary", "/usr/bin/zxfer", "--state-dir", dir})
		require.Equal(t, 0, code, errs.String())
		require.Contains(t, out.String(), "0 * * * * op /usr/bin/zxfer replicate run")
		return errs.String()
	}
	require.Equal(t, `job "docs": user op cannot create its state directory; run once as root: install -d -o op -m 750 `+dir+"/docs\n", cron())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "docs"), 0o750))
	require.Empty(t, cron())
}
