package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestZFSReplicateTTY expects a run on a terminal to show each transfer with the name of
// its target, and a total. Without a terminal, the run prints only its result.
func TestZFSReplicateTTY(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	for _, d := range []string{src, src + "/a", src + "/b"} {
		zfsCmd(t, "create", d)
		fill(t, d, "f", 3<<20)
	}
	zfsCmd(t, "create", "-o", "canmount=off", dst)
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
snapshots = { take = "s-%%Y%%m%%dT%%H%%M%%SZ" }
target = [{ name = "far", to = "beta:%s/far", transfer = { bandwidth = "1M" } }]
`, src, dst))

	tty, shown := openTerminal(t, 132)
	p := prepareProcess(t, []string{"TERM=xterm"}, alphaBin, "replicate", "run", "-c", r.file, "--state-dir", r.state, "home")
	p.cmd.Stderr = tty
	p.start(t)
	waitShown(t, shown, `total +\[#+-+\] +\d+ % .* of 9\.\d MiB .* \S+ [KM]iB/s +ETA \d+ s +\d of 3 datasets done`)
	waitShown(t, shown, `far: zxalpha/\S+ +\[#+-+\] +\d+ % .* [KM]iB/s .*limited by bandwidth limit`)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGUSR1))
	waitShown(t, shown, `\d of 3 datasets done, \S+ [KM]iB of 9\.\d MiB \(\d+ %\), \S+ [KM]iB/s, ETA \d+ s: far: `+src+`\S*@s-\S+ \d+ %`)
	o := p.wait(t)
	require.Equal(t, 0, o.code, "%q", shown)
	require.Contains(t, o.stdout, "home: done in ")
	waitShown(t, shown, `(: done, [^\x1b]*\r\n|\x1b\[J)$`) // the live lines were removed

	fill(t, src+"/a", "g", 1<<20)
	again := start(t, "replicate", "run", "-c", r.file, "--state-dir", r.state, "home").wait(t)
	require.Equal(t, 0, again.code, again)
	require.NotContains(t, again.stderr, "\x1b")
	require.LessOrEqual(t, strings.Count(again.stderr, "\n"), 4, "one line per stream: %s", again.stderr)
}
