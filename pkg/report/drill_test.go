package report

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
)

// TestDrillFacts expects that only copies with a result count as good.
func TestDrillFacts(t *testing.T) {
	t.Parallel()
	last, before := time.Date(2026, 11, 28, 17, 15, 37, 0, time.Local), time.Date(2026, 11, 28, 17, 15, 27, 0, time.Local)
	bad := []*statedir.DrilledCopy{{}}
	for want, d := range map[string]status.DrillStatus{
		"none yet": {Copies: 2, NeverVerified: 2},
		"2 copies good, LAST, all verified 10 s ago":                  {Last: last, Outcome: outcome.Done, Copies: 2, Good: last, DrillLateness: status.DrillLateness{Age: 10}},
		"1 of 2 copies good, LAST, not all were ever verified":        {Last: last, Outcome: outcome.Done, Copies: 2, NeverVerified: 1},
		"refused LAST, no copy was ever verified":                     {Last: last, Outcome: outcome.Refused, Copies: 2, NeverVerified: 2, DrillLateness: status.DrillLateness{Age: 10, Warning: 5, Critical: 9}},
		"interrupted LAST, not all were ever verified":                {Last: last, Outcome: outcome.Interrupted, Copies: 2, NeverVerified: 1},
		"refused LAST, all verified 20 s ago":                         {Last: last, Outcome: outcome.Refused, Copies: 2, Good: before, DrillLateness: status.DrillLateness{Age: 20}},
		"1 of 2 copies not verified, LAST, no copy was ever verified": {Last: last, Outcome: outcome.Failed, Copies: 2, NeverVerified: 2, NotGood: bad},
	} {
		require.Equal(t, strings.ReplaceAll(want, "LAST", stamp(last)), strings.Join(DrillFacts(&d, stamp), ", "))
		j := &status.JobStatus{Job: "home", State: status.OK, Drill: &d}
		if d.Warning > 0 {
			require.Contains(t, performance(summarizedJob{j, status.Summarize(j)}), "drill_home=U;5;9;0", "no drill verified the copies")
		}
	}
}
