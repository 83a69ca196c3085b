package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// TestReplicateFlags expects printed commands to contain the given job file, state directory
// and host.
func TestReplicateFlags(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&replicateOptions{}).flags())
	require.Empty(t, (&replicateOptions{file: defaultJobFile, stateDir: defaultStateDir}).flags())
	require.Equal(t, " --config 'my jobs.toml' --state-dir /srv/state --host web1", (&replicateOptions{file: "my jobs.toml", stateDir: "/srv/state", host: "web1"}).flags())
}

// TestInitialJob expects the job file of init to be valid, also with its commented settings
// enabled. Its retention policies must keep all snapshots of consecutive runs.
func TestInitialJob(t *testing.T) {
	t.Parallel()
	for answered, off := range map[string]string{"tank/vm\n\nbeta:vault\n\n": "none", "tank/vm\n\n\n\n": "parallel"} {
		text, err := interview(strings.NewReader(answered), io.Discard)
		require.NoError(t, err)
		shown := regexp.MustCompile(`(?m)^#(\[|[a-z_]+ = )`).ReplaceAllString(strings.ReplaceAll(text, "#"+off, "# "+off), "$1")
		require.NotEqual(t, text, shown)
		for _, text := range []string{text, shown} {
			f, err := jobfile.Parse("x", []byte(text))
			require.NoError(t, err, text)
			j := f.Jobs[0]
			grids := []*retention.Grid{j.Retention}
			for i := range j.Targets {
				grids = append(grids, j.Targets[i].Retention)
			}
			for _, g := range grids {
				var points []retention.Point
				for i := range 10 {
					points = append(points, retention.Point{Name: fmt.Sprint(i), Time: time.Unix(1e9+int64(i), 0), Order: uint64(i)})
				}
				require.Len(t, g.Keep(points), 10)
			}
		}
	}
}

// TestRunAsService expects exit code 0 if a signal stops a service. Other interruptions must
// not be reported as success.
func TestRunAsService(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flag  string
		cause error
		code  int
	}{{"--service", errSignal, 0}, {"--service", errors.New("another"), 4}, {"--wait", errSignal, 4}} {
		dir := t.TempDir()
		config := filepath.Join(dir, "jobs.toml")
		require.NoError(t, os.WriteFile(config, []byte("[[job]]\nname = \"a\"\nsource = \"tank\"\nsnapshots = { take = \"s%Y%m%d%H%M%S\" }\n"), 0o600))
		store, err := statedir.Open(dir, "a")
		require.NoError(t, err)
		unlock, err := store.Lock(t.Context(), false)
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for deadline := time.Now().Add(testenv.Timeout()); countOpen(dir, "lock") < 2 && time.Now().Before(deadline); {
				time.Sleep(5 * time.Millisecond)
			}
			cancel(tt.cause) // while the run waits for the lock
		}()
		var stderr bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: &stderr, now: time.Now}
		require.Equal(t, tt.code, execute(ctx, a, []string{"replicate", "run", "--wait", tt.flag, "-c", config, "--state-dir", dir, "a"}), &stderr)
		unlock()
	}
}

// countOpen returns the number of open files of this process with a given name below dir.
func countOpen(dir, name string) (n int) {
	all, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range all {
		file, err := os.Readlink(fd)
		if err == nil && strings.HasPrefix(file, dir) && filepath.Base(file) == name {
			n++
		}
	}
	return n
}
