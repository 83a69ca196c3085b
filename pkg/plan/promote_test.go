package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// After zfs promote both datasets go on where both have something newer in common;
// else the refusal names the one command, after which both do.
func TestPromoted(t *testing.T) {
	t.Parallel()
	// tank/a/o was at @1 and @2, of which tank/a/c was made and promoted.
	source := func(o, c string) []string { return []string{o, c} }
	plan := func(source []string, target map[string]string) Plan {
		all := State{SourceHost: "alpha", TargetHost: "beta"}
		given := given(dataset(t, "tank/a", "@x,90"), dataset(t, "tank/a/c", source[1]), dataset(t, "tank/a/o", source[0], "origin=tank/a/c@2"), dataset(t, "vault/a", "@x,90"))
		for _, name := range []string{"vault/a/c", "vault/a/o", "vault/a/o-old"} {
			if versions, ok := target[name]; ok {
				given.Target.Datasets = append(given.Target.Datasets, dataset(t, name, versions))
			}
		}
		given.SourceHost, given.TargetHost = all.SourceHost, all.TargetHost
		return Make(request().with(func(r *Request) { r.Recursive = true }), given)
	}
	promoted := source("@3,13 @4,14", "@1,1 @2,2 @3,3 @4,4")

	// Both had @3.
	p := plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2 @3,13", "vault/a/c": "@3,3"})
	require.Empty(t, p.Conflicts)
	require.Contains(t, planned(p), "tank/a/c: @3>@4\ntank/a/o: @3>@4")

	// The clone was never sent: its history is there as the demoted one's.
	p = plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2"})
	require.Len(t, p.Conflicts, 2)
	for _, c := range p.Conflicts {
		require.Equal(t, NoCommon, c.ID)
		require.Contains(t, c.Remedy, "zfs rename vault/a/o vault/a/c")
	}
	require.Contains(t, p.Conflicts[1].Summary, "alpha:tank/a/c was promoted over tank/a/o: the history of beta:vault/a/o up to @2")
	p = plan(promoted, map[string]string{"vault/a/c": "@1,1 @2,2"})
	require.Empty(t, p.Conflicts, "as after that")
	require.Contains(t, planned(p), "tank/a/c: @2>@3>@4\ntank/a/o: clone tank/a/c@2>@3, @3>@4")

	// The clone was sent, and the demoted one has nothing newer in common.
	p = plan(promoted, map[string]string{"vault/a/o": "@1,1 @2,2", "vault/a/c": "@3,3"})
	refused(t, p, NoCommon, "zfs rename vault/a/o vault/a/o-old", "only what is not in @2 is sent")
	require.Contains(t, p.astray, "vault/a/o", "it can be set aside")
	p = plan(promoted, map[string]string{"vault/a/o-old": "@1,1 @2,2", "vault/a/c": "@3,3"})
	require.Empty(t, p.Conflicts)
	require.Contains(t, planned(p), "tank/a/o: clone tank/a/c@2>@3, @3>@4")
	require.Equal(t, "vault/a/o-old@2", p.Datasets[2].Steps[0].Receive.Origin)
}
