package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/failover"
)

// TestFailoverText prints plans, results and refusals, and cleans text of other hosts.
func TestFailoverText(t *testing.T) {
	t.Parallel()
	const evil = "x\x1b[2J\ny"
	steps := []failover.Step{{Host: "b", Text: "zfs set readonly=off v/x", Done: true}, {Text: "edit " + evil}}
	show := func(f failover.Result) string {
		f.Job, f.Source, f.Copy = "home", "tank/x", "b:v/x"
		var b strings.Builder
		require.NoError(t, FailoverText(&b, &f))
		require.NotContains(t, b.String(), "\x1b")
		require.NotRegexp(t, `(?m)^\s*y`, b.String(), "a line that the text started")
		return b.String()
	}
	planned, failed := outcome.Conclusion{Outcome: outcome.Planned}, outcome.Conclusion{Outcome: outcome.Failed, Error: "x"}
	require.Equal(t, "home: would make b:v/x the source in 2 steps\n  1. b: zfs set readonly=off v/x\n  2. edit x?[2J y\n  note: n\n  next: c\n",
		show(failover.Result{Steps: steps, Conclusion: planned, Notes: []string{"n"}, Next: []string{"c"}}))
	require.Equal(t, "home: tank/x to b:v/x: failed, 1 of 2 steps done, 1.0 KiB sent\n", show(failover.Result{Steps: steps, Conclusion: failed, Bytes: 1024, Next: []string{"c"}}))
	require.Equal(t, "  note: "+"n\n", show(failover.Result{Conclusion: failed, Notes: []string{"n"}}))
	require.Equal(t, "home: nothing to do: b:v/x is the source\n", show(failover.Result{Conclusion: outcome.Conclusion{Outcome: outcome.Done}}))
	show(failover.Result{Steps: steps, Notes: []string{evil}, Next: []string{evil}})
}
