package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoundTrips expects a column for each round trip, in ascending order. Lines about zxfer hold
// the round trips after the login, the share of the link, and the ratio to the best rival, which
// excludes limits.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	require.NoError(t, run(strings.NewReader(`
result row=login/100 contender=login us=1000000
result row=small_change/100 contender=limit_by_hand us=1500000
result row=small_change/100 contender=zxfer_send us=2000000
result row=small_change/100 contender=syncoid us=8000000 note=estimate
result row=in_full/100 contender=mbuffer bytes=100000000 us=4000000
result row=in_full/100 contender=zxfer bytes=100000000 us=2500000 own=45000000
result row=login/1 contender=login us=100000
result row=small_change/1 contender=zxfer_send us=200000
`), &table, &strings.Builder{}, "", "", "", 50e6))
	require.Equal(t, `| work | contender | 1 ms | 100 ms |
| --- | --- | --- | --- |
| login | login | 0.10 | 1.00 |
| small change | by hand | - | 1.50 |
| small change | zxfer send | 0.20 | 2.00 |
| small change | zxfer send: round trips after the login | - | 10.0 |
| small change | zxfer send: ratio to the best rival | - | 4.00 |
| small change | syncoid | - | (8) |
| in full | mbuffer | - | 4.00 |
| in full | zxfer | - | 2.50 |
| in full | zxfer: share of the link, command | - | 80 % |
| in full | zxfer: share of the link, stream | - | 90 % |
| in full | zxfer: ratio to the best rival | - | 1.60 |
`, table.String())
	for _, row := range []string{"login", "login/x", "login/0"} {
		require.ErrorContains(t, run(strings.NewReader("result row="+row+" contender=a us=1"), &table, &strings.Builder{}, "", "", "", 1), "has no round trip")
	}
}
