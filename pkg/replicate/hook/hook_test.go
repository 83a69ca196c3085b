package hook

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/statedir"
)

func TestHook(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	j := &replicate.Job{Name: "home", Source: "tank/home"}
	r := &statedir.Run{Started: time.Unix(1000, 0), Outcome: outcome.Failed, Targets: []*statedir.TargetRun{{Target: "near", Error: "no way"}}}
	h := &replicate.Hook{Command: []string{"/bin/sh", "-c", `env | grep ^ZXFER_ | grep -v ^ZXFER_TEST_ | sort >"$0"; cat >>"$0"`, out}}
	require.NoError(t, Pipe(t.Context(), h, Environment("alert", j, r), strings.NewReader("{record}")))
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, "ZXFER_ERROR=near: no way\nZXFER_HOOK=alert\nZXFER_JOB=home\nZXFER_OUTCOME=failed\nZXFER_SOURCE=tank/home\nZXFER_STARTED=1000\n{record}", string(text))

	err = Pipe(t.Context(), &replicate.Hook{Command: []string{"/bin/sh", "-c", "echo db is down >&2; exit 3"}}, nil, nil)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "db is down")
	require.Error(t, Pipe(t.Context(), &replicate.Hook{Command: []string{"/no/such/hook"}}, nil, nil))
}

// TestHookErrorIsOneLine expects that an error from another host reaches a hook as one printable
// line.
func TestHookErrorIsOneLine(t *testing.T) {
	t.Parallel()
	r := &statedir.Run{Targets: []*statedir.TargetRun{{Target: "near", Error: "no\nZXFER_OUTCOME=done\x1b[2J\x00\r\tway"}}}
	env := Environment("alert", &replicate.Job{}, r)
	require.Contains(t, env, "ZXFER_ERROR=near: no ZXFER_OUTCOME=done?[2J?? way")
}

// TestHookTimeout expects that a hook that ignores SIGTERM, and its descendants, are killed in
// time.
func TestHookTimeout(t *testing.T) {
	t.Parallel()
	h := &replicate.Hook{Command: []string{"/bin/sh", "-c", `sleep 100000 & wait`}, Timeout: calendar.Duration(200 * time.Millisecond)}
	err := Pipe(t.Context(), h, nil, nil)
	require.ErrorContains(t, err, "did not end within 200ms")
}
