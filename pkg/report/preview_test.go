package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
)

// check -v lists every snapshot, without -v it counts them.
func TestPreviewListsSnapshots(t *testing.T) {
	t.Parallel()
	p := &runner.Preview{Job: "home", Source: "tank", Datasets: 2, Snapshots: []string{"tank@now", "tank/a@now"},
		Prunings: []*replicate.Pruning{{Side: "source", Remove: []string{"tank@old"}, Kept: 2, Stays: map[string]string{"tank@b": "base of near", "tank@a": "daily"}}}}
	var short, long strings.Builder
	require.NoError(t, PreviewText(&short, p, false))
	require.NoError(t, PreviewText(&long, p, true))
	require.Equal(t, "home: tank, 2 datasets\n  would take 2 snapshots: tank@now ...\n"+
		"  retention on source: would remove 1 snapshot and keep 2\n", short.String())
	require.Equal(t, "home: tank, 2 datasets\n  would take 2 snapshots: tank@now\n    tank/a@now\n"+
		"  retention on source: would remove 1 snapshot and keep 2\n    tank@old\n    tank@a stays: daily\n    tank@b stays: base of near\n", long.String())
}
