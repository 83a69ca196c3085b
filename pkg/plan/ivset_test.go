package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIVSets(t *testing.T) {
	t.Parallel()
	decrypt := request().with(func(r *Request) { r.Decrypt = true })
	state := func(source string) State {
		return stateOf(dataset(t, "tank/a", source, encrypted, unlocked), dataset(t, "vault/a", "@x,1", encrypted, unlocked))
	}
	tests := []struct {
		name           string
		req            Request
		source, target map[uint64]string
		refused        string
	}{
		{"equal", request(), map[uint64]string{1: "7"}, map[uint64]string{1: "7"}, ""},
		{"different", request(), map[uint64]string{1: "7"}, map[uint64]string{1: "8"}, "the raw chain is broken: alpha:tank/a@a and beta:vault/a@x"},
		{"unknown on the target", request(), map[uint64]string{1: "7"}, nil, ""},
		{"unknown on the source", request(), nil, map[uint64]string{1: "7"}, ""},
		{"unknown on both sides", decrypt, nil, nil, ""},
		{"decrypted onto its own", decrypt, map[uint64]string{1: "7"}, map[uint64]string{1: "8"}, ""},
		{"decrypted onto raw", decrypt, map[uint64]string{1: "7"}, map[uint64]string{1: "7"}, "beta:vault/a@x was received raw"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := state("@a,1 @b,2")
			p := mustMake(t, tt.req, s)
			source, target := NeedIVSets(p)
			require.Equal(t, []string{"tank/a@a"}, source)
			require.Equal(t, []string{"vault/a@x"}, target)
			s.SourceIVSets, s.TargetIVSets = tt.source, tt.target
			CheckIVSets(&p, s)
			if tt.refused == "" {
				require.Empty(t, p.Conflicts)
				return
			}
			requireConflict(t, p, IVSetMismatch, tt.refused)
			require.NotEmpty(t, p.Conflicts[0].Remedy)
		})
	}
	source, _ := NeedIVSets(mustMake(t, request(), state("#mark,1 @b,2")))
	require.Equal(t, []string{"tank/a#mark"}, source)
	for name, s := range map[string]State{
		"up to date":    state("@a,1"),
		"not encrypted": stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1")),
		"full":          stateOf(dataset(t, "tank/a", "@a,1", encrypted)),
	} {
		p := mustMake(t, request(), s)
		CheckIVSets(&p, s)
		require.Empty(t, p.Conflicts, name)
		source, target := NeedIVSets(p)
		require.Empty(t, source, name)
		require.Empty(t, target, name)
	}
}

// A clone's raw stream continues its origin's chain.
func TestRawClones(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	state := func(target string) State {
		return stateOf(dataset(t, "tank/a", "@s,1", encrypted), dataset(t, "tank/a/c", "@t,2", encrypted, "origin=tank/a@s"), dataset(t, "vault/a", "@s,1", target))
	}
	p := mustMake(t, req, state(encrypted))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "clone tank/a@s>@t", stepsText(p.Datasets[1]))
	source, target := NeedIVSets(p)
	require.Equal(t, []string{"tank/a@s"}, source)
	require.Equal(t, []string{"vault/a@s"}, target)

	p = mustMake(t, req, state("encryption=off"))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "full @t", stepsText(p.Datasets[1]))
	require.Contains(t, notes(p), "differs from its origin in encryption")
}
