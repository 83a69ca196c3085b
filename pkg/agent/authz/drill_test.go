package authz

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestDrillGrant expects that a drill grant permits cloning and reading the named datasets, and
// nothing else.
func TestDrillGrant(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("vault/a", "vault/b", "vault/e")
	h.Set("vault/e", "encryption", "on")
	require.NoError(t, h.Snapshot(t.Context(), []string{"vault/a@x", "vault/b@x", "vault/e@x"}))
	clone := func(snapshot string) string {
		name, err := h.CreateDrillClone(t.Context(), zfs.DrillClone{Snapshot: snapshot, Job: "j"})
		require.NoError(t, err)
		return name
	}
	a, b, e := clone("vault/a@x"), clone("vault/b@x"), clone("vault/e@x")
	s := hosts.On(h, "test", func(string) {})
	defer s.Close()
	p, err := Parse([]string{"drill=vault/a", "drill=vault/e"}, nil, false)
	require.NoError(t, err)
	require.Equal(t, "--allow drill=vault/a --allow drill=vault/e", p.String())
	g := NewGuard(p, s, func(string) {})

	require.NoError(t, mayCreateDrillClone(t.Context(), g, &zfs.DrillClone{Snapshot: "vault/a@x", Job: "j"}))
	asked := zfs.DrillClone{Snapshot: "vault/a@x", Job: "j", Among: []string{"vault/none"}}
	require.NoError(t, mayCreateDrillClone(t.Context(), g, &asked))
	require.Equal(t, []string{"vault/a", "vault/e"}, asked.Among, "the limit counts the clones of all drill grants")
	require.Error(t, mayCreateDrillClone(t.Context(), g, &zfs.DrillClone{Snapshot: "vault/b@x", Job: "j"}))
	require.Error(t, mayCreateDrillClone(t.Context(), g, &zfs.DrillClone{Snapshot: "vault/a@x", Job: "j", Writable: true}))
	require.Error(t, mayCreateDrillClone(t.Context(), g, &zfs.DrillClone{Snapshot: "vault/a@x", Job: "j", KeyFile: "/etc/key"}))
	require.NoError(t, mayDestroyDrillClones(t.Context(), g, &zfs.DrillClones{Job: "j", Datasets: []string{"vault/a"}}))
	require.Error(t, mayDestroyDrillClones(t.Context(), g, &zfs.DrillClones{Job: "j", Datasets: []string{"vault/a", "vault/b"}}))
	require.Error(t, mayDestroyDrillClones(t.Context(), g, &zfs.DrillClones{Job: "j"}))

	marks := []string{"origin", zfs.DrillCloneProperty}
	require.NoError(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{a, e}, Properties: marks}))
	require.Error(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{a, b}, Properties: marks}), "not granted for a drill")
	require.Error(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{a}, Properties: []string{"all"}}))
	require.NoError(t, mayReadFiles(t.Context(), g, &files.Query{Snapshot: a, Sample: 1}))
	for _, name := range []string{b, "vault/a", "vault/a@x", a + "/below", a + "@x"} {
		require.Error(t, mayReadFiles(t.Context(), g, &files.Query{Snapshot: name, Sample: 1}), name)
	}
	require.ErrorContains(t, mayReadFiles(t.Context(), g, &files.Query{Snapshot: e, Sample: 1}), "send-decrypted=vault/e")
	require.Error(t, mayReadFiles(t.Context(), g, &files.Query{Snapshot: a, Sample: 1, KeyFile: "/etc/key"}))
	unmarked := zfs.DrillCloneName("vault", "1")
	h.Clone("vault/a@x", unmarked)
	require.Error(t, mayReadFiles(t.Context(), g, &files.Query{Snapshot: unmarked, Sample: 1}), "not a drill clone")
	require.Error(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{unmarked}, Properties: marks}))
	digest := func(dataset string, raw bool) error {
		return mayDigest(t.Context(), g, &hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: dataset, To: "x", Flags: zfs.StreamFlags{Raw: raw}}})
	}
	require.NoError(t, digest("vault/a", false))
	require.NoError(t, digest("vault/e", true))
	require.Error(t, digest("vault/e", false))
	require.Error(t, digest("vault/b", true))
	require.Error(t, mayDigest(t.Context(), g, &hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: "vault/a", To: "x"}, KeyFile: "/etc/key"}))
	require.Error(t, maySnapshot(t.Context(), g, &[]string{"vault/a@y"}))
	require.Error(t, mayDestroy(t.Context(), g, &[]string{"vault/a@x"}))
}
