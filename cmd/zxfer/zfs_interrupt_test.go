package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestZFSInterruptTree presses ^C on a terminal while a job sends a tree over ssh. The run says in a few lines that it was
// interrupted, and does not report a lost connection. The next run completes.
func TestZFSInterruptTree(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "large", 24<<20)
	for i := range 50 {
		zfsCmd(t, "create", fmt.Sprintf("%s/d%02d", src, i))
	}
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "near"
to = "beta:%s"
transfer = { bandwidth = "4MiB", buffer = "2MiB", wire = "ssh" }
`, src, dst))
	argv := strings.Join([]string{alphaBin, "replicate", "run", "-c", r.file, "--state-dir", r.state, "home"}, " ")
	p := prepareProcess(t, []string{"TERM=xterm"}, "script", "-qefc", argv, "/dev/null")
	keys, err := p.cmd.StdinPipe()
	require.NoError(t, err)
	p.start(t)
	for end := time.Now().Add(testenv.Timeout()); !regexp.MustCompile(`[1-9][0-9.]* MiB`).MatchString(p.stdout.String()); {
		require.True(t, time.Now().Before(end) && !p.ended(), p.stdout.String()+p.stderr.String())
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(time.Second) // the first stream
	before := len(p.stdout.String())
	_, err = io.WriteString(keys, "\x03")
	require.NoError(t, err)
	o := p.wait(t)
	require.Equal(t, 4, o.code, o)
	after := regexp.MustCompile("\x1b\\[[0-9;?]*[a-zA-Z]").ReplaceAllString(o.stdout[before:], "")
	require.NotContains(t, after, "lost")
	require.NotContains(t, after, "1 failed")
	var said []string
	for line := range strings.Lines(after) {
		if line = strings.TrimSpace(line); regexp.MustCompile(`zxfer:|hint:|failed|interrupted`).MatchString(line) {
			said = append(said, line)
		}
	}
	t.Log(after)
	require.NotEmpty(t, said, after)
	require.LessOrEqual(t, len(said), 6, after)
	require.Contains(t, after, " interrupted")
	require.Equal(t, 0, zxfer(t, "replicate", "run", "-c", r.file, "--state-dir", r.state, "home").code)
}
