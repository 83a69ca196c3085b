package report

import (
	"cmp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// TestPreviewListsSnapshots expects that check -v lists every snapshot, and that check without -v
// counts them.
func TestPreviewListsSnapshots(t *testing.T) {
	t.Parallel()
	p := &runner.Preview{Job: "home", Source: "tank", Datasets: 2, Snapshots: []string{"tank@now", "tank/a@now"},
		Prunings: []*decision.Pruning{{Side: "source", Remove: []string{"tank@old"}, Kept: 2, KeepReasons: map[string]retention.Reason{"tank@b": {Kind: retention.IncrementalSource, Of: "near"}, "tank@a": {Kind: retention.KeptByRules, Of: "daily"}}}}}
	var short, long strings.Builder
	require.NoError(t, PreviewText(&short, p, false))
	require.NoError(t, PreviewText(&long, p, true))
	require.Equal(t, "home: tank, 2 datasets\n  would take 2 snapshots: tank@now ...\n"+
		"  retention on source: would destroy 1 snapshot and keep 2\n", short.String())
	require.Equal(t, "home: tank, 2 datasets\n  would take 2 snapshots: tank@now\n    tank/a@now\n"+
		"  retention on source: would destroy 1 snapshot and keep 2\n    tank@old\n    tank@a is kept: daily\n    tank@b is kept: incremental source for near\n", long.String())
}

// TestPreviewAndStatusAreClean expects that text from other hosts or records moves no cursor and
// adds no line.
func TestPreviewAndStatusAreClean(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[2J\ny"
	pruning := &decision.Pruning{Side: evil, Remove: []string{evil, evil}, KeepReasons: map[string]retention.Reason{evil: {Kind: retention.NotSentOn, Of: evil}}, Untrusted: []string{evil, evil}, Error: evil, Hint: evil}
	p := &runner.Preview{Job: "home", Source: evil, Snapshots: []string{evil, evil}, Error: evil, Prunings: []*decision.Pruning{pruning},
		Delegations: []*runner.Delegation{{Host: evil, User: evil, Command: evil}},
		Targets: []*runner.TargetPreview{{Target: "near", To: evil, Wire: connect.Report{Mode: evil}, Refused: []outcome.Dataset{{Source: evil, Error: evil, Hint: evil}},
			Plan: &plan.Plan{Notes: []string{"x\x1b[2J"}, Datasets: []*plan.Dataset{{Source: evil, Target: evil, Steps: []plan.Step{{Kind: plan.Full, Why: evil, Send: zfs.SendSpec{To: evil}}}}}}}}}
	late := &status.DatasetStatus{Source: evil, To: evil, Lateness: status.Lateness{Late: true}, Outcome: evil, Error: evil}
	s := &status.Status{Jobs: []*status.JobStatus{{Job: "home", Source: evil, State: status.Late, Late: true, LastRunStatus: status.LastRunStatus{Outcome: evil}, Datasets: []*status.DatasetStatus{late}, Verdict: status.Verdict{Problems: []*status.Problem{{State: evil, Error: evil, Hint: evil, Datasets: []string{evil}, To: []string{evil}}}}}}}
	for _, verbose := range []bool{false, true} {
		var b strings.Builder
		require.NoError(t, PreviewText(&b, p, verbose))
		require.NoError(t, PruningText(&b, "home", pruning, verbose))
		require.NoError(t, StatusText(&b, s, ""))
		_, err := Nagios(&b, s)
		require.NoError(t, err)
		require.NotContains(t, b.String(), "\x1b")
		require.NotRegexp(t, `(?m)^\s*y`, b.String(), "a line that the text started")
	}
}

// TestDelegations expects that a preview names missing permissions, and nothing that the account has.
func TestDelegations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d              runner.Delegation
		short, verbose string
	}{
		{runner.Delegation{Host: "b", User: "ann", Command: "zfs allow -u ann send tank"},
			"  ann is not root on b and lacks permissions that the job needs; once as root there: zfs allow -u ann send tank\n", ""},
		{runner.Delegation{User: "ann", Command: "zfs allow -u ann send tank", Unknown: "no answer"},
			"  ann is not root on this host, and its permissions are unknown (no answer); the job needs these, once as root there: zfs allow -u ann send tank\n", ""},
		{runner.Delegation{User: "ann"}, "", "  ann is not root on this host: nothing is missing: it has all permissions that the job needs\n"},
		{runner.Delegation{User: "ann", Command: "zfs allow x", RootOnly: []string{"drill", "disk"}},
			"  ann is not root on this host and lacks permissions that the job needs; once as root there: zfs allow x\n" +
				"  ann is not root on this host: on Linux, zfs allow cannot permit: drill, disk\n", ""},
	} {
		for verbose, want := range map[bool]string{false: c.short, true: cmp.Or(c.verbose, c.short)} {
			var b strings.Builder
			delegationText(&b, &c.d, verbose)
			require.Equal(t, want, b.String())
		}
	}
	var b strings.Builder
	p := &runner.Preview{Job: "home", Source: "tank", Denied: []runner.Denied{{Target: "near", Key: "zxfer heal", When: "you run it", Error: "no", Hint: "add", Harmless: true, Command: true}}}
	require.NoError(t, PreviewText(&b, p, false))
	require.NotContains(t, b.String(), "heal")
	require.NoError(t, PreviewText(&b, p, true))
	require.Contains(t, b.String(), "  near: zxfer heal: it would fail when you run it: no\n    hint: add\n")
}

// TestDeniedPreview expects that a missing permission fails no run that does not need it.
func TestDeniedPreview(t *testing.T) {
	t.Parallel()
	p := &runner.Preview{Job: "home", Source: "tank", Denied: []runner.Denied{{Target: "near", Key: "mirror", When: "the source no longer has a snapshot of a copy", Error: "append-only"}}}
	var b strings.Builder
	require.NoError(t, PreviewText(&b, p, false))
	require.Contains(t, b.String(), "  near: mirror: a run would fail when the source no longer has a snapshot of a copy: append-only\n")
	require.EqualError(t, p.Err(), `job "home": a later run would fail: see above`)
}

// TestDivergedHint expects that the hint shows how to destroy a diverged copy.
func TestDivergedHint(t *testing.T) {
	t.Parallel()
	s := &status.Status{Jobs: []*status.JobStatus{{Job: "home", Source: "tank", LeftCopies: status.LeftCopies{Diverged: []status.DivergedStatus{{Destroy: "ssh nas zfs destroy -r v/b.zxfer-2026-11-23T10-15-00Z"}}}}}}
	var b strings.Builder
	require.NoError(t, StatusText(&b, s, ""))
	require.Contains(t, b.String(), "hint: to destroy it: ssh nas zfs destroy -r v/b.zxfer-2026-11-23T10-15-00Z\n")
}
