package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
)

// mainAt runs zxfer with a clock that starts at ZXFER_TEST_NOW, in Unix seconds.
func mainAt() {
	at, err := strconv.ParseInt(os.Getenv("ZXFER_TEST_NOW"), 10, 64)
	if err != nil {
		panic(err)
	}
	ctx, stop := withSignals(context.Background())
	began := time.Now()
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, now: func() time.Time { return time.Unix(at, 0).Add(time.Since(began)) }}
	code := execute(ctx, a, os.Args[1:])
	stop()
	os.Exit(code)
}

// replication is a job file and its state directory.
type replication struct {
	file, state string
}

func newReplication(t *testing.T, text string) *replication {
	t.Helper()
	dir := t.TempDir()
	r := &replication{file: filepath.Join(dir, "replicate.toml"), state: filepath.Join(dir, "state")}
	r.write(t, text)
	return r
}

func (r *replication) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(r.file, []byte(text), 0o600))
}

// startAt starts zxfer replicate on alpha with its clock at a time.
func (r *replication) startAt(t *testing.T, at time.Time, verb string, args ...string) *process {
	t.Helper()
	at1 := strconv.FormatInt(at.Unix(), 10)
	bin := filepath.Join(filepath.Dir(alphaBin), "zxfer-at")
	if _, err := os.Stat(bin); err != nil {
		require.NoError(t, os.Link(alphaBin, bin))
	}
	argv := []string{"-c", r.file, "--state-dir", r.state}
	return startAs(t, []string{"ZXFER_TEST_NOW=" + at1}, bin, append(append([]string{"replicate", verb}, argv...), args...)...)
}

func (r *replication) runAt(t *testing.T, at time.Time, verb string, args ...string) cmdResult {
	t.Helper()
	return r.startAt(t, at, verb, args...).wait(t)
}

func (r *replication) mustRunAt(t *testing.T, at time.Time, verb string, args ...string) cmdResult {
	t.Helper()
	o := r.runAt(t, at, verb, args...)
	require.Equal(t, 0, o.code, "replicate %s: %s", verb, o)
	return o
}

// lastRun returns the most recent record of a job.
func (r *replication) lastRun(t *testing.T, job string) *statedir.Run {
	t.Helper()
	runs, err := statedir.Peek(r.state, job).Runs(1)
	require.NoError(t, err)
	require.Len(t, runs, 1)
	return runs[0]
}

// holdsOf lists the holds of a dataset and its descendants as "snapshot tag".
func holdsOf(t *testing.T, d string) (out []string) {
	t.Helper()
	holds, err := listHolds(d)
	require.NoError(t, err)
	for _, h := range holds {
		out = append(out, h.snapshot+" "+h.tag)
	}
	return out
}

func snapshotNames(t *testing.T, d string) []string {
	t.Helper()
	var out []string
	for name := range guids(t, d) {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// TestZFSReplicate runs a job with one target: full and incremental sends, a run with
// nothing new, retention, holds, bookmarks, status, log and metrics.
func TestZFSReplicate(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "create", src+"/cache")
	fill(t, src+"/a", "x", 1<<20)
	zfsCmd(t, "snapshot", src+"/a@mine")
	prom := filepath.Join(t.TempDir(), "zxfer.prom")
	r := newReplication(t, fmt.Sprintf(`
[metrics]
textfile = %q
[[job]]
name = "home"
source = %q
recursive = true
exclude = ["cache"]
schedule = "hourly"
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = 2 }
[[job.target]]
name = "near"
to = "beta:%s"
retention = { last = 3 }
properties = { set = { "org.example:kept" = "yes" } }
`, prom, src, dst))
	base := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	name := func(i int) string { return "home-" + base.Add(time.Duration(i)*time.Hour).Format("20060102T150405Z") }

	o := r.runAt(t, base, "status")
	require.Equal(t, 1, o.code, "a scheduled job that never ran must be late: %s", o)
	before := state(t)
	o = r.mustRunAt(t, base, "check", "-v")
	require.Contains(t, o.stdout, "would take 2 snapshots")
	require.Contains(t, o.stdout, "2 datasets to send in 2 streams (2 of them in full)")
	require.Equal(t, before, state(t), "check changed something")

	for i := range 5 {
		at := base.Add(time.Duration(i) * time.Hour)
		o := r.mustRunAt(t, at, "run", "home")
		t.Logf("%s", o.stdout)
		if i < 3 {
			fill(t, src+"/a", fmt.Sprint(i), 100<<10)
		}
	}
	require.Equal(t, []string{name(3), name(4)}, snapshotNames(t, src))
	require.Equal(t, []string{name(3), name(4), "mine"}, snapshotNames(t, src+"/a"), "foreign snapshots must be kept")
	require.Equal(t, []string{name(2), name(3), name(4)}, snapshotNames(t, dst+"/a"), "foreign snapshots must not be sent")
	require.Equal(t, "yes", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "org.example:kept", dst+"/a")))
	require.NotContains(t, zfsCmd(t, "list", "-H", "-o", "name", "-r", dst), "cache")
	tag := " " + replicate.Tag("home", "near")
	require.Equal(t, []string{src + "@" + name(4) + tag, src + "/a@" + name(4) + tag}, holdsOf(t, src))
	require.Equal(t, []string{dst + "@" + name(4) + tag, dst + "/a@" + name(4) + tag}, holdsOf(t, dst))
	require.Equal(t, src+"/a#zxfer:home:"+name(4)+"\n", zfsCmd(t, "list", "-H", "-d", "1", "-t", "bookmark", "-o", "name", src+"/a"))
	requireSameFiles(t, src+"/a", dst+"/a")

	at := base.Add(4*time.Hour + time.Minute)
	o = r.mustRunAt(t, at, "status", "--json")
	var st status.Status
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &st))
	require.False(t, st.Late)
	require.Len(t, st.Jobs[0].Datasets, 2)
	require.Equal(t, 0, r.runAt(t, base.Add(5*time.Hour+14*time.Minute), "status").code, "within the grace period")
	o = r.runAt(t, base.Add(5*time.Hour+16*time.Minute), "status")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.stdout, "LATE by 16 min")
	o = r.mustRunAt(t, at, "log", "home")
	require.Equal(t, 5, strings.Count(o.stdout, "beta:"+dst), o.stdout)
	metrics, err := os.ReadFile(prom)
	require.NoError(t, err)
	require.Contains(t, string(metrics), fmt.Sprintf("zxfer_replicate_dataset_last_success_seconds{job=\"home\",source=%q,target=\"near\"} %d\n", src+"/a", base.Add(4*time.Hour).Unix()))

	// After the job is renamed, its former holds are stale.
	require.Contains(t, r.mustRunAt(t, at, "holds").stdout, "needed\tlocal:"+src+"@"+name(4))
	text, err := os.ReadFile(r.file)
	require.NoError(t, err)
	r.write(t, strings.ReplaceAll(string(text), `name = "home"`, `name = "other"`))
	o = r.mustRunAt(t, at, "holds", "--gc")
	require.Equal(t, 4, strings.Count(o.stdout, "released"), o.stdout)
	require.Empty(t, holdsOf(t, src))
	require.Empty(t, holdsOf(t, dst))
	requireNoLeftovers(t)
}
