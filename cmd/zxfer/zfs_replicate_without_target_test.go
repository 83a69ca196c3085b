package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestZFSReplicateWithoutTarget imports a sanoid policy without transfers as a job without a
// target. The job takes snapshots on schedule, applies its retention policy, and keeps
// snapshots that others took or hold.
func TestZFSReplicateWithoutTarget(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	zfsCmd(t, "snapshot", "-r", src+"@autosnap_old_hourly") // the job adopts these
	zfsCmd(t, "snapshot", src+"/a@mine")
	conf := filepath.Join(t.TempDir(), "sanoid.conf")
	require.NoError(t, os.WriteFile(conf, []byte("["+src+"]\nrecursive = yes\nhourly = 1\ndaily = 2\nmonthly = 0\n"), 0o600))
	r := newReplication(t, "")
	job := strings.TrimPrefix(src, alphaPool+"/")
	o := mustZxfer(t, "replicate", "import", conf, "--overwrite", "-o", r.file)
	require.Contains(t, o.stderr, "1 left by hand", "sanoid.timer")
	text, err := os.ReadFile(r.file)
	require.NoError(t, err)
	// The imported retention policy keeps more than sanoid's numbers. The rest of the test
	// uses a smaller one.
	require.Contains(t, string(text), "[job.retention]\nhourly = 3\ndaily = 4\nalso = [")
	grid, _, _ := strings.Cut(string(text), "[job.retention]")
	r.write(t, grid+"[job.retention]\nhourly = 1\ndaily = 2\n")

	// Hours from 0 are tomorrow's, and hours from 24 are those a day later.
	day := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	at := func(hour int) time.Time { return day.Add(time.Duration(hour) * time.Hour) }
	name := func(hour int) string { return "zxfer_" + job + "_" + at(hour).Format("2006-01-02_15:04:05") }
	r.mustRunAt(t, at(22), "run", job)
	zfsCmd(t, "hold", "keep", src+"/a@"+name(22))
	r.mustRunAt(t, at(23), "run", job)
	require.Equal(t, []string{"autosnap_old_hourly", name(23)}, snapshotNames(t, src), "the most recent snapshot of each day")
	r.mustRunAt(t, at(24+10), "run", job)
	kept := []string{name(23), name(24 + 10)}
	require.Equal(t, kept, snapshotNames(t, src))
	require.Equal(t, append([]string{"mine", name(22)}, kept...), snapshotNames(t, src+"/a"), "foreign and held snapshots must be kept")
	require.Equal(t, []string{src + "/a@" + name(22) + " keep"}, holdsOf(t, src), "a job without a target sets no holds")

	zfsCmd(t, "release", "keep", src+"/a@"+name(22))
	o = r.mustRunAt(t, at(24+10), "prune", job)
	require.Contains(t, o.stdout, "removed 1 snapshot, 4 kept")
	require.Equal(t, append([]string{"mine"}, kept...), snapshotNames(t, src+"/a"))

	o = r.mustRunAt(t, at(24+11).Add(14*time.Minute), "status")
	require.Contains(t, o.stdout, fmt.Sprintf("due for 14 min 0 s  @%s\n", name(24+10)))
	o = r.runAt(t, at(24+11).Add(16*time.Minute), "status")
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stdout, "LATE by 16 min")
	o = r.mustRunAt(t, at(24+11), "log", job)
	require.Equal(t, 3, strings.Count(o.stdout, ": done in "), o.stdout)
	requireNoLeftovers(t)
}
