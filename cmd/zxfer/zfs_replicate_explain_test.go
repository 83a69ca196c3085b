package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// datasetRecord returns a dataset's part of a run's record, or nil if the dataset had
// nothing to send.
func datasetRecord(r *statedir.Run, source string) *outcome.Dataset {
	for i := range r.Targets[0].Datasets {
		if r.Targets[0].Datasets[i].Source == source {
			return &r.Targets[0].Datasets[i]
		}
	}
	return nil
}

// TestZFSReplicateExplainsConflicts causes a different conflict in each of several datasets. It
// expects a run to explain each with a hint, to change none of them and to send the others,
// and a run after all hints to succeed.
func TestZFSReplicateExplainsConflicts(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	for _, d := range []string{"good", "renamed", "recreated", "modified", "diverged"} {
		zfsCmd(t, "create", src+"/"+d)
		fill(t, src+"/"+d, "x", 50<<10)
	}
	dir := t.TempDir()
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "j"
source = %q
recursive = true
schedule = "hourly"
snapshots = { take = "j-%%Y%%m%%d%%H%%M" }
alert = { command = ["/bin/sh", "-c", "cat >%s/alert"] }
before = [{ command = ["/bin/sh", "-c", "echo $ZXFER_JOB >%s/before"] }]
[[job.target]]
name = "near"
to = "beta:%s"
`, src, dir, dir, dst))
	at := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	r.mustRunAt(t, at, "run", "j")
	require.NoFileExists(t, filepath.Join(dir, "alert"))
	require.FileExists(t, filepath.Join(dir, "before"))

	zfsCmd(t, "rename", src+"/renamed", src+"/moved")
	for _, h := range holdsOf(t, src+"/recreated") {
		name, tag, _ := strings.Cut(h, " ")
		zfsCmd(t, "release", tag, name)
	}
	zfsCmd(t, "destroy", "-r", src+"/recreated")
	zfsCmd(t, "create", src+"/recreated")
	zfsCmd(t, "set", "readonly=off", dst+"/modified")
	mount(t, dst+"/modified")
	fill(t, dst+"/modified", "theirs", 20<<10)
	run(t, "zpool", "sync")
	zfsCmd(t, "snapshot", dst+"/diverged@theirs")
	before := zfsCmd(t, "list", "-H", "-t", "snapshot", "-o", "name,guid", "-r", dst)

	at = at.Add(time.Hour)
	o := r.runAt(t, at, "run", "j")
	require.Equal(t, 1, o.code, o.String())
	last := r.lastRun(t, "j")
	require.Equal(t, outcome.Done, datasetRecord(last, src+"/good").Outcome)
	for d, want := range map[string]struct{ conflict, text, hint string }{
		"moved":     {"renamed", "was renamed", "zfs rename " + dst + "/renamed " + dst + "/moved"},
		"recreated": {"recreated", "deleted and recreated", "zfs rename " + dst + "/recreated " + dst + "/recreated-"},
		"modified":  {"modified", "has been modified", "zfs rollback"},
		"diverged":  {"diverged", "@theirs", ""},
	} {
		dr := datasetRecord(last, src+"/"+d)
		require.NotNil(t, dr, d)
		require.Equal(t, outcome.Refused, dr.Outcome, d)
		require.Equal(t, want.conflict, dr.Conflict, d)
		require.Contains(t, dr.Error, want.text, d)
		require.Contains(t, dr.Hint, want.hint, d)
		require.Contains(t, o.stderr, dr.Error)
	}
	after := zfsCmd(t, "list", "-H", "-t", "snapshot", "-o", "name,guid", "-r", dst)
	for l := range strings.Lines(before) {
		require.Contains(t, after, l, "a snapshot was destroyed")
	}
	alert, err := os.ReadFile(filepath.Join(dir, "alert"))
	require.NoError(t, err)
	require.Contains(t, string(alert), `"outcome":"refused"`)

	zfsCmd(t, "rename", dst+"/renamed", dst+"/moved")
	zfsCmd(t, "rename", dst+"/recreated", dst+"/recreated-old")
	zfsCmd(t, "unmount", dst+"/modified")
	zfsCmd(t, "rollback", strings.TrimSpace(zfsCmd(t, "list", "-H", "-d", "1", "-t", "snapshot", "-o", "name", dst+"/modified")))
	zfsCmd(t, "set", "readonly=on", dst+"/modified") // otherwise reading would change it again
	zfsCmd(t, "destroy", dst+"/diverged@theirs")
	at = at.Add(time.Hour)
	r.mustRunAt(t, at, "run", "j")
	for _, d := range []string{"good", "moved", "recreated", "modified", "diverged"} {
		requireSameFiles(t, src+"/"+d, dst+"/"+d)
	}

	// The source of the job was renamed.
	zfsCmd(t, "rename", src, src+"-elsewhere")
	o = r.runAt(t, at.Add(time.Hour), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "was renamed to "+src+"-elsewhere")
	zfsCmd(t, "rename", src+"-elsewhere", src)

	// A second run refuses and leaves the first one alone.
	slow := newReplication(t, strings.Replace(string(must(os.ReadFile(r.file))), "echo $ZXFER_JOB >", "touch "+dir+"/here; while [ ! -e "+dir+"/go ]; do sleep 0.1; done; : >", 1))
	slow.state = r.state
	p := slow.startAt(t, at.Add(2*time.Hour), "run", "j")
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "here"))
		return err == nil
	}, testenv.Timeout(), 100*time.Millisecond)
	o = r.runAt(t, at.Add(2*time.Hour), "run", "j")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "running already")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	o = p.wait(t)
	require.Equal(t, 0, o.code, o.String())
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestZFSReplicateManyPending expects one stream for 25 empty snapshots.
func TestZFSReplicateManyPending(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@s00")
	r := newReplication(t, fmt.Sprintf("[[job]]\nname = 'j'\nsource = %q\nsnapshots = { adopt = ['s*'] }\n[[job.target]]\nname = 'near'\nto = 'beta:%s'\n", src, dst))
	at := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	r.mustRunAt(t, at, "run", "j")
	for i := range 25 {
		zfsCmd(t, "snapshot", fmt.Sprintf("%s@s%02d", src, i+1))
	}
	r.mustRunAt(t, at, "run", "j")
	require.Equal(t, 1, datasetRecord(r.lastRun(t, "j"), src).Streams)
	require.Equal(t, guids(t, src), guids(t, dst))
}

// TestZFSReplicatePruneMany destroys 1,000 snapshots, 10,000 at the long level, and expects
// it to keep protected ones.
func TestZFSReplicatePruneMany(t *testing.T) {
	lab(t)
	datasets, snapshots := 40, 26 // one process takes each snapshot of all datasets
	if testenv.Long() {
		datasets, snapshots = 100, 101
	}
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=none", src)
	for i := range datasets - 1 {
		zfsCmd(t, "create", "-u", fmt.Sprintf("%s/d%02d", src, i))
	}
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	name := func(i int) string { return begin.Add(time.Duration(i) * time.Minute).Format("p-200601021504") }
	for i := range snapshots {
		zfsCmd(t, "snapshot", "-r", src+"@"+name(i))
	}
	zfsCmd(t, "hold", "keep", src+"@"+name(7), src+"/d05@"+name(8))
	zfsCmd(t, "snapshot", src+"/d06@p-mine")
	r := newReplication(t, fmt.Sprintf("[[job]]\nname = 'j'\nsource = %q\nrecursive = true\nsnapshots = { take = 'p-%%Y%%m%%d%%H%%M' }\nretention = { last = 1 }\n[[job.target]]\nname = 'gone'\nto = '%s/nowhere'\n", src, dst))
	at := begin.AddDate(0, 1, 0)
	o := r.mustRunAt(t, at, "prune", "-n", "j")
	require.Contains(t, o.stdout, "would destroy "+humanize.Comma(int64(datasets*(snapshots-1)-2))+" snapshots")
	r.mustRunAt(t, at, "prune", "j")
	left := strings.Count(zfsCmd(t, "list", "-H", "-t", "snapshot", "-o", "name", "-r", src), "\n")
	require.Equal(t, datasets+2+1, left)
	zfsCmd(t, "list", src+"@"+name(7), src+"/d05@"+name(8), src+"/d06@p-mine", src+"@"+name(snapshots-1))
}
