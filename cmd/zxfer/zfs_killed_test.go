package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// killingZFS is a directory for PATH. Its zfs kills zxfer before or after its change number N, which is
// written to the file "at": before it if 2*N is odd. Its python3 makes zxfer use the command line.
type killingZFS struct{ dir string }

func newKillingZFS(t *testing.T) killingZFS {
	t.Helper()
	k := killingZFS{t.TempDir()}
	testenv.WriteProgram(t, filepath.Join(k.dir, "python3"), "#!/bin/sh\nexit 1\n")
	testenv.WriteProgram(t, filepath.Join(k.dir, "zfs"), fmt.Sprintf(`#!/bin/sh
case "$*" in "send "*" -n"*|"send -n"*) exec %[1]s "$@" ;; snapshot*|hold*|release*|bookmark*|destroy*|send*|receive*|rename*) ;; *) exec %[1]s "$@" ;; esac
n=$(flock %[2]s/lock sh -c 'echo "$2" >>"$1"; wc -l <"$1"' sh %[2]s/calls "$*") at=$(cat %[2]s/at)
[ $((2 * n - 1)) != $at ] || { kill -9 $PPID; exit 1; }
%[1]s "$@"; code=$?
[ $((2 * n)) != $at ] || kill -9 $PPID
exit $code
`, strings.TrimSpace(run(t, "sh", "-c", "command -v zfs")), k.dir))
	return k
}

// run runs zxfer replicate on a job file, and kills it at a change; 0 = never. It returns the change.
func (k killingZFS) run(t *testing.T, r *replication, now time.Time, at int) (o cmdResult, killedAt string) {
	t.Helper()
	require.NoError(t, os.WriteFile(k.dir+"/at", fmt.Append(nil, at), 0o600))
	require.NoError(t, os.WriteFile(k.dir+"/calls", nil, 0o600))
	var stdout, stderr bytes.Buffer
	bin := filepath.Join(filepath.Dir(alphaBin), "zxfer-at")
	if _, err := os.Stat(bin); err != nil {
		require.NoError(t, os.Link(alphaBin, bin))
	}
	cmd := exec.Command(bin, "replicate", "run", "-c", r.file, "--state-dir", r.state, "home")
	cmd.Env = append(os.Environ(), "PATH="+k.dir+":"+os.Getenv("PATH"), "ZXFER_TEST_NOW="+strconv.FormatInt(now.Unix(), 10))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the caller checks its exit code
	o = cmdResult{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	if o.code == -1 {
		killedAt = strings.TrimSpace(slices.Collect(strings.Lines(fileText(k.dir + "/calls")))[(at-1)/2])
	}
	return o, killedAt
}

// TestZFSKilledBetweenReceiveAndBookmark kills a run before each command that changes a pool, at the long
// level also after it. Then another tool destroys all snapshots of the source, so that only bookmarks remain. It
// expects the next run to send increments.
func TestZFSKilledBetweenReceiveAndBookmark(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
recursive = true
holds = "none"
parallel = 1
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ", adopt = ["other*"] }
[[job.target]]
name = "far"
to = %q
`, src, dst))
	k, now := newKillingZFS(t), time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC)
	both := []string{"", "/a"}
	write := func(round int) {
		for _, b := range both {
			fill(t, src+b, fmt.Sprint("f", round), 2<<20)
		}
		zfsCmd(t, "snapshot", "-r", src+fmt.Sprint("@other", round))
	}
	write(0)
	o, _ := k.run(t, r, now, 0)
	require.Equal(t, 0, o.code, o)
	want := map[string]string{"": value(t, dst, "guid"), "/a": value(t, dst+"/a", "guid")}
	kills := map[string]int{}
	for at := 1; ; at += testenv.Rounds(2, 2, 1) {
		write(at)
		now = now.Add(time.Hour)
		o, killed := k.run(t, r, now, at)
		if killed == "" {
			require.Equal(t, 0, o.code, o)
			break
		}
		t.Logf("killed at %d, %q", at, killed)
		kills[strings.Fields(killed)[0]]++
		for _, b := range both {
			for _, name := range snapshotNames(t, src+b) {
				_ = exec.Command("zfs", "destroy", src+b+"@"+name).Run() // an orphan zfs send may still read it
			}
		}
		now = now.Add(time.Hour)
		o, _ = k.run(t, r, now, 0)
		require.Equal(t, 0, o.code, "killed at %q: %s", killed, o)
		for _, b := range both {
			require.Equal(t, want[b], value(t, dst+b, "guid"), "%s was sent in full, killed at %q", b, killed)
			source, copied := guids(t, src+b), guids(t, dst+b)
			for name, guid := range source {
				require.Equal(t, guid, copied[name], "@%s, killed at %q", name, killed)
			}
			marks := strings.Fields(zfsCmd(t, "list", "-H", "-t", "bookmark", "-o", "name", src+b))
			require.LessOrEqual(t, len(marks), 1+len(source), "killed at %q", killed)
			require.True(t, slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(m, "#"+zfs.TagPrefix+"home:home-") }), marks)
		}
	}
	kills["stream"] = kills["send"] + kills["receive"] // both start at the same time
	for _, change := range []string{"snapshot", "bookmark", "stream", "destroy"} {
		require.Positive(t, kills[change], "%s: %v", change, kills)
	}
}
