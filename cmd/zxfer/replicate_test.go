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

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// Commands to paste name the job file and the state directory that were given.
func TestReplicateFlags(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&replicateOptions{}).flags())
	require.Empty(t, (&replicateOptions{file: defaultJobFile, stateDir: defaultStateDir}).flags())
	require.Equal(t, " --config 'my jobs.toml' --state-dir /srv/state --host web1", (&replicateOptions{file: "my jobs.toml", stateDir: "/srv/state", host: "web1"}).flags())
}

// What init writes is a job as it is, and one with all that it shows in comments.
// Of runs that follow each other within an hour none removes what another made.
func TestInitialJob(t *testing.T) {
	t.Parallel()
	for answered, off := range map[string]string{"tank/vm\n\nbeta:vault\n\n": "none", "tank/vm\n\n\n\n": "parallel"} {
		text, err := interview(strings.NewReader(answered), io.Discard)
		require.NoError(t, err)
		shown := regexp.MustCompile(`(?m)^#(\[|[a-z_]+ = )`).ReplaceAllString(strings.ReplaceAll(text, "#"+off, "# "+off), "$1")
		require.NotEqual(t, text, shown)
		for _, text := range []string{text, shown} {
			f, err := replicate.Parse("x", []byte(text))
			require.NoError(t, err, text)
			j := f.Jobs[0]
			grids := []*replicate.Grid{j.Retention}
			for i := range j.Targets {
				grids = append(grids, j.Targets[i].Retention)
			}
			for _, g := range grids {
				var points []replicate.Point
				for i := range 10 {
					points = append(points, replicate.Point{Name: fmt.Sprint(i), Time: time.Unix(1e9+int64(i), 0), Order: uint64(i)})
				}
				require.Len(t, g.Keep(points), 10)
			}
		}
	}
}

// A service that was told to stop did what it was told; what else interrupts a run is
// no success.
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
			for deadline := time.Now().Add(testenv.Timeout()); opened(dir, "lock") < 2 && time.Now().Before(deadline); {
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

// opened returns how many open files of this process are a file of that name below dir.
func opened(dir, name string) (n int) {
	all, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range all {
		file, err := os.Readlink(fd)
		if err == nil && strings.HasPrefix(file, dir) && filepath.Base(file) == name {
			n++
		}
	}
	return n
}
