package decision

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// TestMirror expects that a mirror destroys snapshots that were deleted on the source, if the state
// knows the source's dataset.
func TestMirror(t *testing.T) {
	t.Parallel()
	const dataset = 1000 // GUID of the source's dataset
	for name, tt := range map[string]struct {
		source, there   []string
		of              uint64
		limit           int
		beyond, partial bool
		remove          []string
		stays           map[string]string
		refused         string
	}{
		"destroyed on the source": {source: []string{"tank@2 @3"}, there: []string{"vault/t@1 @2 @3"}, of: dataset, limit: 1, remove: []string{"vault/t@1"}},
		"nothing destroyed":       {source: []string{"tank@1 @2 @3"}, there: []string{"vault/t@1 @2"}, limit: 1},
		"moved by a promotion":    {source: []string{"tank@2 @3", "tank/b@1"}, there: []string{"vault/t@1 @2 @3"}, of: dataset, limit: 1},
		"not seen before":         {source: []string{"tank@2"}, there: []string{"vault/t@1 @2"}, limit: 1, remove: []string{"vault/t@1"}, refused: "no earlier run saw it"},
		"recreated":               {source: []string{"tank@2"}, there: []string{"vault/t@1 @2"}, of: 7, limit: 1, remove: []string{"vault/t@1"}, refused: "recreated"},
		"without a limit":         {source: []string{"tank@2"}, there: []string{"vault/t@1 @2"}, of: 7, beyond: true, remove: []string{"vault/t@1"}},
		"more than the limit":     {source: []string{"tank@3"}, there: []string{"vault/t@1 @2 @3"}, of: dataset, limit: 1, remove: []string{"vault/t@1", "vault/t@2"}, refused: "mirror.limit is 1 per run"},
		"exactly the limit":       {source: []string{"tank@3"}, there: []string{"vault/t@1 @2 @3"}, of: dataset, limit: 2, remove: []string{"vault/t@1", "vault/t@2"}},
		"the source is a bookmark": {source: []string{"tank#2 @3"}, there: []string{"vault/t@1 @2"}, of: dataset, limit: 1, remove: []string{"vault/t@1"},
			stays: map[string]string{"vault/t@2": "incremental source of the next run"}},
		"a target that diverged": {source: []string{"tank@2"}, there: []string{"vault/t@2 @5"}, of: dataset, limit: 1,
			stays: map[string]string{"vault/t@5": "newer than the most recent common snapshot"}},
		"a source without snapshots": {source: []string{"tank#2"}, there: []string{"vault/t@1 @2"}, of: dataset, limit: 9,
			stays: map[string]string{"vault/t@1": "the source lists no snapshot", "vault/t@2": "the source lists no snapshot"}},
		"a partially received source": {source: []string{"tank@2"}, there: []string{"vault/t@1 @2"}, of: dataset, limit: 9, partial: true,
			stays: map[string]string{"vault/t@1": "the source lists no snapshot"}},
		"without a copy": {source: []string{"tank@2", "tank/b@3"}, there: []string{"vault/t@1 @2"}, of: dataset, limit: 1, remove: []string{"vault/t@1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newRunState(t, parseListing(tt.source...), near+fmt.Sprintf("mirror = { limit = %d }\n", tt.limit)).withCopy(replicate.CopyState{OriginalGUID: tt.of}).withTarget(parseListing(tt.there...))
			v.NoLimit = tt.beyond
			if tt.partial {
				v.Survey.Source.Datasets[0].Properties["inconsistent"] = zfs.Property{Value: "1"}
			}
			d := Decide(v)
			require.Len(t, d.Prunings, 1)
			p := d.Prunings[0]
			require.True(t, p.Mirror)
			require.ElementsMatch(t, tt.remove, p.Remove)
			if tt.stays == nil {
				tt.stays = map[string]string{}
			}
			require.Equal(t, tt.stays, texts(p.KeepReasons))
			require.Equal(t, len(v.Targets[0].Listing.Datasets[0].Snapshots())-len(tt.remove), p.Kept)
			require.Equal(t, tt.refused != "", p.Refused)
			require.Contains(t, p.Error, tt.refused)
			result := p.Results["tank"]
			require.Equal(t, len(tt.remove) == 0, result.Fingerprint != "")
			known := tt.of == dataset || len(tt.remove) == 0 || tt.beyond
			require.Equal(t, known, result.Original == dataset, "the dataset is known from now on")
		})
	}
}
