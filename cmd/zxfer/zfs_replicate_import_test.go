package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A host moves from sanoid and syncoid to zxfer: their own snapshots and copies
// are gone on with, nothing is sent in full again.
func TestZFSReplicateImport(t *testing.T) {
	lab(t)
	for _, tool := range []string{"sanoid", "syncoid"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: %v", tool, err)
		}
	}
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	fill(t, src+"/a", "x", 1<<20)
	dir := t.TempDir()
	conf := filepath.Join(dir, "sanoid.conf")
	require.NoError(t, os.WriteFile(conf, []byte("["+src+"]\nrecursive = yes\nuse_template = few\n[template_few]\nhourly = 2\ndaily = 1\nmonthly = 0\n"), 0o600))
	run(t, "sanoid", "--configdir", dir, "--cache-dir", dir, "--run-dir", dir, "--take-snapshots")
	argv := []string{"syncoid", "--quiet", "--recursive", "--no-sync-snap", src, dst}
	run(t, argv...)
	sanoids := snapshotNames(t, src+"/a")
	require.Len(t, sanoids, 2, "one of the hour and one of the day")
	require.Equal(t, sanoids, snapshotNames(t, dst+"/a"))

	r := newReplication(t, "")
	o := mustZxfer(t, "replicate", "import", conf, "--syncoid", strings.Join(argv, " "), "--overwrite", "-o", r.file)
	require.Contains(t, o.stderr, "1 job in ")
	fill(t, src+"/a", "y", 1<<20)
	now := time.Now().Add(time.Hour)
	// syncoid's copies are mounted, and so were modified: mountpoints were made
	// in them. check names the way out.
	require.Contains(t, o.stderr, "zfs set readonly=on "+dst)
	zfsCmd(t, "set", "readonly=on", dst)
	o = r.at(t, now, "check")
	for _, m := range regexp.MustCompile(`zfs rollback (\S+@\S+)`).FindAllStringSubmatch(o.stdout, -1) {
		zfsCmd(t, "rollback", m[1])
	}
	o = r.must(t, now, "check")
	require.Contains(t, o.stdout, "2 datasets to send in 2 streams (0 of them in full)")
	require.NotContains(t, o.stdout, "refused\n")
	job := strings.TrimPrefix(src, alphaPool+"/")
	r.must(t, now, "run", job)
	for _, d := range r.last(t, job).Targets[0].Datasets {
		require.Zero(t, d.Full, d.Source)
	}
	sameFiles(t, src+"/a", dst+"/a")
	for _, d := range []string{src + "/a", dst + "/a"} {
		require.True(t, slices.ContainsFunc(snapshotNames(t, d), func(n string) bool { return strings.HasPrefix(n, "zxfer_"+job+"_") }), d)
	}

	// An hour and three later sanoid's snapshots are not among those that its
	// own policy keeps: two hours, one day.
	r.must(t, now.Add(2*time.Hour), "run", job)
	for _, n := range snapshotNames(t, src+"/a") {
		require.False(t, strings.HasPrefix(n, "autosnap_"), "%s is adopted, and neither of the newest two hours nor of the day", n)
	}
	nothingLeft(t, 20*time.Second)
}
