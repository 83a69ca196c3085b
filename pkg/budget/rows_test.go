package budget

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ rows, groups int }{
		"": {}, "a": {}, "a\n": {1, 1}, "a\tx\na\ty\n": {2, 1}, "a\tx\nb\tx\n": {2, 2}, "a\nb\na\n": {3, 3}, "\n\n\n": {3, 1}, "a\tb": {0, 1},
	} {
		cost := byteCost*len(text) + rowCost*want.rows + groupCost*want.groups
		require.Equal(t, cost, new(Rows).Cost([]byte(text)), "%q", text)
		var pieces Rows
		got := 0
		for c := range strings.SplitSeq(text, "") {
			got += pieces.Cost([]byte(c))
		}
		require.Equal(t, cost, got, "%q in pieces", text)
	}
}

func TestMeter(t *testing.T) {
	t.Parallel()
	require.True(t, MeterOf(t.Context()).Take(1<<40))
	m := MeterOf(WithMeter(t.Context(), 10))
	require.True(t, m.Take(6))
	require.True(t, m.Take(4))
	require.False(t, m.Take(1))
}
