package main

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/compare"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/job/restore"
	"zxfer/pkg/job/send"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/replicate/fleet"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/importer"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/report"
	"zxfer/pkg/testenv"
)

// The golden copies in testdata/golden show what users and other programs rely on. They change only if a
// feature changes, never with the structure of the code. Help and job file have their copies in
// docs/reference, the texts of reports in pkg/report/testdata.

// TestGoldenFields compares the fields of all JSON outputs and of all records with their golden copy. Programs of
// users read the outputs; the next version of zxfer reads the records.
func TestGoldenFields(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, of := range []struct {
		name  string
		value any
	}{
		{"zxfer.send/v1 and zxfer.restore/v1", send.Report{}},
		{"zxfer.dev/v1", dev.Report{}},
		{"zxfer.compare/v1", compare.Report{}},
		{"zxfer.heal/v1", heal.Report{}},
		{"zxfer.heal.job/v1", heal.JobReport{}},
		{"zxfer.files/v1", restore.FilesReport{}},
		{"zxfer.doctor/v1", doctor.Report{}},
		{"zxfer.progress/v1", report.Event{}},
		{"zxfer.version/v1", versionReport{}},
		{"zxfer.replicate.status/v1", status.Status{}},
		{"zxfer.replicate.hosts/v1", fleet.Fleet{}},
		{"zxfer.replicate.switch/v1 and zxfer.replicate.promote/v1", failover.Result{}},
		{"zxfer.replicate.run/v1: runs[]; zxfer replicate log; runs.jsonl", statedir.Run{}},
		{"zxfer.replicate.drill/v1: drills[]; drills.jsonl", statedir.Drill{}},
		{"zxfer.replicate.check/v1: jobs[]", runner.Preview{}},
		{"zxfer.replicate.prune/v1: jobs{}[]", decision.Pruning{}},
		{"zxfer.replicate.holds/v1: holds[]", holds.Held{}},
		{"zxfer.replicate.import/v2: left[]", importer.Entry{}},
		{"state.json", statedir.State{}},
		{"drills.json", statedir.DrillState{}},
		{"settled.json", statedir.UnchangedCache{}},
		{"mail.json", statedir.Mailed{}},
		{"schedules.json: {}", statedir.ScheduleStart{}},
	} {
		b.WriteString("# " + of.name + "\n" + testenv.JSONFields(of.value) + "\n")
	}
	testenv.Golden(t, filepath.Join("testdata", "golden", "fields.txt"), b.String())
}

// TestGoldenUnits compares the systemd units and cron lines of job files with their golden copies.
func TestGoldenUnits(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"home", "fleet"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, file := t.TempDir(), testenv.Data(t, "jobs", name+".toml")
			args := []string{"replicate", "install", "--host", "web1", "-c", file, "--state-dir", "/var/lib/zxfer", "--binary", "/usr/bin/zxfer"}
			o := runMain(t, append(args, "--root", root)...)
			require.Zero(t, o.code, o)
			units := map[string]string{}
			require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				text, err := os.ReadFile(path)
				units[strings.TrimPrefix(path, root)] = string(text)
				return err
			}))
			require.NotEmpty(t, units)
			var b strings.Builder
			for _, path := range slices.Sorted(maps.Keys(units)) {
				b.WriteString("-- " + path + " --\n" + units[path] + "\n")
			}
			o = runMain(t, append(args, "--cron")...)
			require.Zero(t, o.code, o)
			b.WriteString("-- cron --\n" + o.stdout)
			testenv.Golden(t, filepath.Join("testdata", "golden", "units-"+name+".txt"), strings.ReplaceAll(b.String(), file, "/etc/zxfer/replicate.toml"))
		})
	}
}
