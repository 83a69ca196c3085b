package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// TestSummaryOfLastStageOnly expects that a restore with only its last stage left was not
// up to date.
func TestSummaryOfLastStageOnly(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a -> b: no data was left to send; the remaining steps are done\n", summary(&send.Report{Source: "a", Target: "b", Conclusion: outcome.Conclusion{Outcome: "done"}}))
}

// TestRolledBackText reports a restore that only rolled datasets back.
func TestRolledBackText(t *testing.T) {
	t.Parallel()
	back := func(name string) *plan.Dataset {
		return &plan.Dataset{Source: "vault/" + name, Target: "tank/" + name, Type: zfs.Filesystem, Final: zfs.Version{Kind: zfs.Snapshot, Name: "a", GUID: 1},
			Loses: []string{"tank/" + name + "@b"}, MovedHolds: []plan.MovedHold{{Tag: "zxfer:j:t", To: "tank/" + name + "@a", From: []string{"tank/" + name + "@b"}}},
			Restore: &plan.RestoreActions{Rollback: &zfs.Rollback{Dataset: "tank/" + name, To: zfs.SnapshotID{Name: "a", GUID: 1}}}}
	}
	r := &send.Report{Source: "vault/h", Target: "tank/h", Conclusion: outcome.Conclusion{Outcome: "done"}, Plan: &plan.Plan{Datasets: []*plan.Dataset{back("h")}}}
	require.Equal(t, "vault/h -> tank/h: rolled back to tank/h@a, nothing had to be sent\n", summary(r))
	text := planText(r)
	for _, line := range []string{"  LOSES tank/h@b on the target\n", "  moves the hold zxfer:j:t to tank/h@a\n", "  rolls back to @a\n", "total: 1 dataset, 1 rolled back, 0 streams\n"} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "up to date")
	r.Plan.Datasets = append(r.Plan.Datasets, back("h/b"))
	require.Equal(t, "vault/h -> tank/h: rolled back 2 datasets, nothing had to be sent\n", summary(r))
	require.Empty(t, rollbackText(""))
	require.Contains(t, rollbackText("zxfer send --rollback tank/h vault/h"), "\n  zxfer send --rollback tank/h vault/h\n")
}
