package main

import (
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZFSReport expects the page of an interrupted send to report the interruption and the
// received data. The page of the command that resumes it reports the data that had arrived
// before.
func TestZFSReport(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "file", 24<<20)
	zfsCmd(t, "snapshot", src+"@a")
	file := filepath.Join(t.TempDir(), "report.html")
	page := func(want ...string) {
		t.Helper()
		htmlFile, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, w := range want {
			require.Regexp(t, regexp.MustCompile(w), string(htmlFile))
		}
	}
	mustZxfer(t, "send", "-n", "--report", file, src+"@a", "beta:"+dst) // this also brings zxfer to beta
	page(`planned, nothing changed`, `<td>full @a<`)
	args := []string{"send", "--report", file, "--bwlimit", "4MiB", src + "@a", "beta:" + dst}
	p := start(t, args...)
	waitReceived(t, p, betaPool, isZFS("receive"), 12<<20) // half of it, after three seconds, so that the plot has points
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGINT))
	o := p.wait(t)
	require.Equal(t, 4, o.code, "%s", o)
	page(`class="outcome warn">interrupted<`, `data-points="[1-9]`, `stopped: `, `the same command resumes`)
	mustZxfer(t, args...)
	page(`class="outcome good">done<`, `resumed: [0-9.]+ MiB already present`, `zfs receive</b>`, `class="part narrow">\s*<svg.*\s*<p><b>bandwidth limit</b>`)
}
