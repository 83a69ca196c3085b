package status

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/testenv"
)

// TestHostileRecords lets the user of a job write nulls and impossible times into its records. It expects a status
// of all jobs, and metrics of the others.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	f, err := jobfile.Parse("f", []byte(`
[metrics]
textfile = "/tmp/zxfer.prom"
[[job]]
name = "own"
source = "tank/own"
snapshots = { take = "s%Y%m%d-%H%M" }
[[job.target]]
name = "near"
to = "vault/own"
[[job]]
name = "user"
source = "tank/user"
recursive = true
schedule = "hourly"
snapshots = { received_from = "other:user" }
drill = { schedule = "weekly" }
[[job.target]]
name = "near"
to = "vault/user"
[[job.target]]
name = "usb"
to = "offsite/user"
[job.target.disk]
pools = { blue = "7" }
late = "14d"
`))
	require.NoError(t, err)
	dataset := `{"targets":{"near":null,"":{},"x":null},"past":{"source":null},"received":null,"alone":null,"consistent":{"a":null},"pruned":null}`
	states := map[string]string{
		"nothing": `{}`,
		"null":    `{"job":null,"last_run":null,"datasets":null,"set_aside":null,"gone":null,"disks":null,"pools":null,"drill_since":null}`,
		"nulls in lists": `{"last_run":{"targets":[null],"damaged":[null],"frozen":[null],"notes":[null],"error":null},"datasets":{"tank/user":null,"tank/user/a":` + dataset +
			`},"set_aside":[null],"gone":[null],"disks":{"usb-blue":null},"pools":{"":null,"near":null}}`,
	}
	for _, at := range []string{"0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59+23:59"} {
		attempt := fmt.Sprintf(`"success":%q,"tried":%q,"failing_since":%q,"held_since":%q`, at, at, at, at)
		states[at] = fmt.Sprintf(`{"last_run":{"started":%[1]q,"ended":%[1]q,"error":"x"},"drill_since":%[1]q,"datasets":{"tank/user":{"received":{"since":%[1]q,"unconfirmed":-9},`+
			`"alone":{%[2]s},"targets":{"near":{%[2]s,"seconds":1e308,"bytes":18446744073709551615},"usb-blue":{%[2]s}}}},`+
			`"gone":[{"target":"near","since":%[1]q}],"set_aside":[{"target":"near","since":%[1]q}],`+
			`"disks":{"usb-blue":{"guid":"7","pool":"offsite","since":%[1]q,"seen":%[1]q,"first":%[1]q}},"pools":{"":{"name":"tank","checked":%[1]q}}}`, at, attempt)
	}
	now := time.Date(2026, 11, 28, 8, 30, 0, 0, time.UTC)
	for name, state := range states {
		for _, drills := range []string{`{}`, `{"last":null,"copies":null}`, `{"last":{"copies":[null]},"copies":{"tank/user":null,"tank/user/a":{"near":null}}}`,
			`{"last":{"started":"9999-12-31T23:59:59Z","outcome":"odd"},"whole":"0000-01-01T00:00:00Z","copies":{"tank/user":{"near":{"good":"0000-01-01T00:00:00Z","failing_since":"9999-12-31T23:59:59Z"}}}}`} {
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "user"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "user", "state.json"), []byte(state), 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "user", "drills.json"), []byte(drills), 0o600))
			s := Of([]*replicate.Job{&f.Jobs[0], &f.Jobs[1]}, dir, now, func(string) time.Time { return now.AddDate(9000, 0, 0) })
			require.Len(t, s.Jobs, 2, name)
			require.Equal(t, Unknown, s.Jobs[0].State, name)
			text, err := Metrics(f, dir, now)
			if s.Jobs[1].State == Unknown { // records with nulls are damaged
				require.Contains(t, name+drills, "null")
				require.ErrorContains(t, err, `job "user"`)
			} else {
				require.Contains(t, []Severity{SeverityWarning, SeverityCritical}, s.Jobs[1].Severity(), "%s: %s", name, drills)
				require.NoError(t, err, name)
			}
			require.Contains(t, string(text), `zxfer_replicate_paused{job="own"} 0`)
		}
	}
}

// TestManyProblems expects that the time for the problems of a record does not grow with the square of their number.
func TestManyProblems(t *testing.T) { //nolint:paralleltest // it measures processor time
	testenv.Linear(t, 2000, func(n int) func() {
		last := &statedir.Run{Outcome: outcome.Failed, Error: "whole"}
		var datasets []*DatasetStatus
		for i := range n {
			text := fmt.Sprint("error ", i)
			last.Targets = append(last.Targets, &statedir.TargetRun{Target: fmt.Sprint("t", i), Outcome: outcome.Failed, Error: text})
			datasets = append(datasets, &DatasetStatus{Source: fmt.Sprint("d", i), To: "near", Outcome: outcome.Failed, Error: text},
				&DatasetStatus{Source: fmt.Sprint("d", i), To: "far", Outcome: outcome.Failed, Error: "the same"},
				&DatasetStatus{Source: "d", To: fmt.Sprint("t", i), Outcome: outcome.Failed, Error: text})
		}
		return func() {
			all := problems(last, datasets)
			require.Len(t, all, 1+n+n+1)
			require.Len(t, all[n+2].Datasets, n)
			require.Equal(t, []string{"far"}, all[n+2].To)
		}
	})
}
