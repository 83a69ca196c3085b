package replicate

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/retention"
)

// TestStateTurn turns the state of a job with two targets there and back, and expects that the bases, holds and
// histories stay with their places.
func TestStateTurn(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	state := func() *State {
		copies := map[string]*CopyState{
			"near": {Target: "vault/home", Base: "b", BaseOnTarget: "n", BaseGUID: 7, Held: []Held{{Source: "tank/home@b", Target: "vault/home@n"}}, Attempt: Attempt{Success: at}},
			"far":  {Target: "pool/home", Base: "a", BaseOnTarget: "a", BaseGUID: 5, Held: []Held{{Source: "tank/home@a", Target: "pool/home@a"}}},
		}
		return &State{Root: 1, Datasets: map[string]*DatasetState{
			"tank/home":   {GUID: 1, Targets: copies, Pruned: map[string]string{SourceSide: "x"}, Histories: map[string]*retention.History{SourceSide: {Dataset: 1}, "near": {Dataset: 2}, "far": {Dataset: 3}}},
			"tank/home/x": {GUID: 4, Targets: map[string]*CopyState{"far": {Target: "pool/home/x"}}},
		}, Orphans: []*Orphan{{Target: "near", Source: "tank/home/gone", Dataset: "vault/home/gone"}, {Target: "far", Source: "tank/home/gone", Dataset: "pool/home/gone"}},
			Diverged: []DivergedCopy{{Target: "near"}}}
	}
	s := state()
	s.Turn("", at)
	require.Equal(t, state(), s)
	s.Turn("near", at)
	require.Equal(t, []any{"near", at, uint64(0), 1, 1}, []any{s.Place, s.PlaceSince, s.Root, len(s.Datasets), len(s.Diverged)})
	d := s.Datasets["vault/home"]
	require.Equal(t, map[string]*retention.History{SourceSide: {Dataset: 2}, FormerSource: {Dataset: 1}, "far": {Dataset: 3}}, d.Histories)
	require.Equal(t, map[string]*CopyState{
		FormerSource: {Target: "tank/home", Base: "n", BaseOnTarget: "b", BaseGUID: 7, Moving: true, Held: []Held{{Source: "vault/home@n", Target: "tank/home@b"}}, Attempt: Attempt{Success: at}},
		"far":        {Target: "pool/home", Base: "a", BaseOnTarget: "a", BaseGUID: 5, Moving: true, Held: []Held{{Target: "pool/home@a"}}},
	}, d.Targets)
	require.Equal(t, []*Orphan{{Target: "far", Source: "vault/home/gone", Dataset: "pool/home/gone"}}, s.Orphans)
	s.Turn("", time.Time{})
	require.Equal(t, []Held{{Source: "tank/home@b", Target: "vault/home@n"}}, s.Datasets["tank/home"].Targets["near"].Held)
	require.Equal(t, state().Datasets["tank/home"].Histories, s.Datasets["tank/home"].Histories)
	require.Equal(t, []any{"tank/home/gone", time.Time{}}, []any{s.Orphans[0].Source, s.PlaceSince})
	for _, name := range []string{"", "near", "far"} {
		require.Equal(t, name, TurnedName(TurnedName(name, "", "near"), "near", ""))
	}
	require.Equal(t, []string{FormerSource, "", "far"}, []string{TurnedName("", "", "near"), TurnedName("near", "", "near"), TurnedName("far", "", "near")})
}
