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

	"zxfer/pkg/testenv"
)

// TestZFSReplicateImport migrates a host from sanoid and syncoid to zxfer. The jobs
// continue from the existing snapshots and copies, and send nothing in full.
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
	snapshots := snapshotNames(t, src+"/a")
	require.Len(t, snapshots, 2, "one hourly and one daily snapshot")
	require.Equal(t, snapshots, snapshotNames(t, dst+"/a"))

	r := newReplication(t, "")
	o := mustZxfer(t, "replicate", "import", conf, "--syncoid", strings.Join(argv, " "), "--overwrite", "-o", r.file)
	require.Contains(t, o.stderr, "2 jobs in ")
	fill(t, src+"/a", "y", 1<<20)
	now := time.Now().Add(time.Hour)
	job := strings.TrimPrefix(src, alphaPool+"/")
	sender := job + "-2" // imported from syncoid
	r.mustRunAt(t, now, "run", job)
	// syncoid leaves its copies mounted. ZFS created mountpoints in them, which modified
	// them. check prints the remedy.
	require.Contains(t, o.stderr, "zfs set readonly=on canmount=noauto "+dst)
	require.Contains(t, o.stderr, "write [job.target.retention] in "+sender)
	o = r.runAt(t, now, "check", sender)
	require.Contains(t, o.stdout, "  backup: no retention: keeps all snapshots\n")
	require.Contains(t, o.stdout, "warning: 2 copies are writable, 2 of them can be mounted")
	protect := regexp.MustCompile(`hint: (zfs set readonly=on canmount=noauto .*)`).FindStringSubmatch(o.stdout)
	require.NotNil(t, protect, o)
	run(t, "sh", "-c", protect[1])
	for _, d := range []string{dst, dst + "/a"} {
		require.Equal(t, "on\nnoauto\n", zfsCmd(t, "get", "-H", "-o", "value", "readonly,canmount", d))
	}
	for _, m := range regexp.MustCompile(`zfs rollback (\S+@\S+)`).FindAllStringSubmatch(o.stdout, -1) {
		zfsCmd(t, "rollback", m[1])
	}
	o = r.mustRunAt(t, now, "check", sender)
	require.Contains(t, o.stdout, "2 datasets to send in 2 streams (0 of them in full)")
	require.NotContains(t, o.stdout, "refused\n")
	require.NotContains(t, o.stdout, "writable")
	r.mustRunAt(t, now, "run", sender)
	for _, d := range r.lastRun(t, sender).Targets[0].Datasets {
		require.Zero(t, d.Full, d.Source)
	}
	requireSameFiles(t, src+"/a", dst+"/a")
	for _, d := range []string{src + "/a", dst + "/a"} {
		require.True(t, slices.ContainsFunc(snapshotNames(t, d), func(n string) bool { return strings.HasPrefix(n, "zxfer_"+job+"_") }), d)
	}

	// Sanoid would keep both, because it has no others of their kind.
	r.mustRunAt(t, now.Add(2*time.Hour), "run", job)
	require.Subset(t, snapshotNames(t, src+"/a"), snapshots)
	requireNoLeftovers(t)
}

// TestZFSReplicateImportKeepsSanoidSnapshots expects the first run after an import to keep
// every snapshot that sanoid keeps, on dates on which calendar periods differ from
// sanoid's. Below the long level it skips the monthly case, because the defaults also keep
// monthly snapshots.
func TestZFSReplicateImportKeepsSanoidSnapshots(t *testing.T) {
	lab(t)
	if _, err := exec.LookPath("sanoid"); err != nil {
		t.Skipf("sanoid is not installed: %v", err)
	}
	requireOwnClock(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	for name, tt := range map[string]struct {
		now      time.Time
		settings string
	}{
		"yearly":   {time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC), "hourly = 0\ndaily = 7\nmonthly = 0\nyearly = 2\n"},
		"monthly":  {time.Date(2026, 3, 1, 0, 30, 0, 0, time.UTC), "hourly = 0\ndaily = 7\nmonthly = 3\nyearly = 0\n"},
		"defaults": {time.Date(2026, 5, 1, 0, 30, 0, 0, time.UTC), ""},
	} {
		if name == "monthly" && !testenv.Long() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			theirs, ours := src+"/"+name+"-sanoid", src+"/"+name+"-zxfer"
			zfsCmd(t, "create", theirs)
			zfsCmd(t, "create", ours)
			type shot struct {
				at   time.Time
				kind string
			}
			var all []shot
			for i := range 3 {
				all = append(all, shot{time.Date(tt.now.Year()-i, 1, 1, 0, 0, 0, 0, time.UTC), "yearly"})
			}
			for i := range 9 {
				all = append(all, shot{time.Date(tt.now.Year(), tt.now.Month()-time.Month(i), 1, 0, 0, 0, 0, time.UTC), "monthly"})
			}
			for _, i := range []int{1, 2, 3, 5, 6, 7, 8, 20, 40, 80, 90, 91, 95} {
				all = append(all, shot{time.Date(tt.now.Year(), tt.now.Month(), 1-i, 23, 59, 0, 0, time.UTC), "daily"})
			}
			for _, i := range []int{0, 1, 2, 3, 47, 48, 49, 60} {
				all = append(all, shot{tt.now.Truncate(time.Hour).Add(-time.Duration(i) * time.Hour), "hourly"})
			}
			slices.SortStableFunc(all, func(a, b shot) int { return a.at.Compare(b.at) })
			for i, s := range all {
				setClock(t, s.at.Add(time.Duration(i)*time.Millisecond))
				snapshot := "@" + s.at.Format("autosnap_2006-01-02_15:04:05_") + s.kind
				zfsCmd(t, "snapshot", theirs+snapshot, ours+snapshot)
			}
			setClock(t, tt.now)
			dir := t.TempDir()
			conf := filepath.Join(dir, "sanoid.conf")
			write := func(d string) {
				defaults := "/etc/sanoid/sanoid.defaults.conf"
				if _, err := os.Stat(defaults); err != nil {
					defaults = "/usr/share/sanoid/sanoid.defaults.conf"
				}
				text, err := os.ReadFile(defaults)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "sanoid.defaults.conf"), text, 0o600))
				require.NoError(t, os.WriteFile(conf, []byte("["+d+"]\n"+tt.settings), 0o600))
			}
			write(theirs)
			before := snapshotNames(t, theirs)
			run(t, "env", "TZ=UTC", "sanoid", "--configdir", dir, "--cache-dir", dir, "--run-dir", dir, "--prune-snapshots", "--force-update")
			kept := snapshotNames(t, theirs)
			require.Less(t, len(kept), len(before), "sanoid destroyed no snapshots")

			write(ours)
			r := newReplication(t, "")
			mustZxfer(t, "replicate", "import", conf, "--overwrite", "-o", r.file)
			job := strings.TrimPrefix(ours, alphaPool+"/")
			job = strings.ReplaceAll(job, "/", "-")
			job = strings.TrimLeft(job[max(0, len(job)-44):], "-")
			o := r.mustRunAt(t, tt.now, "check", "-v", job)
			for _, n := range kept {
				require.NotContains(t, o.stdout, "    "+ours+"@"+n+"\n")
			}
			r.mustRunAt(t, tt.now, "run", job)
			require.Subset(t, snapshotNames(t, ours), kept)
		})
	}
}
