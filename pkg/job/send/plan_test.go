package send

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// TestOneHostUnderTwoNames reaches one host under two names, and plans a rollback of a dataset onto
// itself. It expects a refusal, because the rollback would destroy everything written since the
// snapshot.
func TestOneHostUnderTwoNames(t *testing.T) {
	t.Parallel()
	listing := zfs.Listing{Root: "tank/a", Datasets: []*zfs.Dataset{{
		Name: "tank/a", Type: zfs.Filesystem, GUID: 1, Properties: map[string]zfs.Property{"written": {Value: "4096"}},
		Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "s", GUID: 7, CreateTXG: 5}},
	}}}
	req := plan.Request{Source: "tank/a", Snapshot: "s", Target: "tank/a", Rollback: true}
	for name, c := range map[string]struct {
		source, target string // boot IDs
		same           bool
	}{
		"one kernel":  {"1", "1", true},
		"two kernels": {"1", "2", false},
		"unknown":     {"", "", false},
		"one unknown": {"1", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testEnds(hosts.Facts{Boot: c.source}, hosts.Facts{Boot: c.target})
			p, err := makePlan(t.Context(), e, req, &plan.State{Source: listing, Target: listing}, nil)
			if !c.same {
				require.NotContains(t, conflictIDs(p), plan.SameDataset)
				return
			}
			require.NoError(t, err)
			require.Equal(t, []string{plan.SameDataset}, conflictIDs(p))
			require.Empty(t, p.Datasets)
		})
	}
}

func conflictIDs(p plan.Plan) (ids []string) {
	for _, c := range p.Conflicts {
		ids = append(ids, c.ID)
	}
	return ids
}
