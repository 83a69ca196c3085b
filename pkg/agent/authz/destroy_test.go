package authz

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestRotateGrant expects that a rotate grant permits renaming copies only to names that mark them
// as diverged copies.
func TestRotateGrant(t *testing.T) {
	t.Parallel()
	ending := zfs.DivergedSuffix(time.Date(2026, 11, 23, 10, 15, 0, 0, time.UTC))
	s := hosts.On(zfsmem.New("vault/a", "vault/b"), "test", func(string) {})
	defer s.Close()
	p, err := Parse([]string{"receive=vault/a", "receive=vault/b", "rotate=vault/a"}, nil, true)
	require.NoError(t, err)
	require.Equal(t, "--allow receive=vault/a --allow receive=vault/b --allow rotate=vault/a --append-only", p.String())
	g := NewGuard(p, s, func(string) {})
	aside := func(dataset, as string) error {
		return mayRenameDiverged(t.Context(), g, &[]zfs.DivergedCopy{{Dataset: dataset, GUID: 1, As: as}})
	}
	require.NoError(t, aside("vault/a", "vault/a"+ending))
	require.NoError(t, aside("vault/a/x", "vault/a/x"+ending))
	for dataset, as := range map[string]string{
		"vault/b":            "vault/b" + ending,            // not granted
		"vault/a":            "vault/other",                 // another name
		"vault/a/x":          "vault/x" + ending,            // another parent
		"vault":              "vault" + ending,              // a pool
		"vault/a/y":          "vault/a/y.zxfer-2026",        // the suffix has no time
		"vault/a/z" + ending: "vault/a/z" + ending + ending, // renamed already
	} {
		require.Error(t, aside(dataset, as), dataset)
	}
	none := []zfs.DivergedCopy{}
	require.NoError(t, mayRenameDiverged(t.Context(), g, &none))

	// The holds of a renamed copy may be released, and its existence queried.
	old := "vault/a" + ending
	require.NoError(t, mayRelease(t.Context(), g, &hosts.Tagged{Tag: "zxfer:j:t", Snapshots: []string{old + "@x", old + "/x@x"}}))
	require.Error(t, mayRelease(t.Context(), g, &hosts.Tagged{Tag: "mine", Snapshots: []string{old + "@x"}}))
	require.Error(t, mayRelease(t.Context(), g, &hosts.Tagged{Tag: "zxfer:j:t", Snapshots: []string{"vault/c" + ending + "@x"}}))
	require.NoError(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{old}, Properties: []string{"guid"}}))
	require.Error(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{"vault/b" + ending}, Properties: []string{"guid"}}))
	require.Error(t, mayDestroy(t.Context(), g, &[]string{old + "@x"}))
	require.Error(t, mayList(t.Context(), g, &hosts.ListQuery{Dataset: old}))

	p, err = Parse([]string{"receive=vault/a"}, nil, false)
	require.NoError(t, err)
	g = NewGuard(p, s, func(string) {})
	require.ErrorContains(t, mayRenameDiverged(t.Context(), g, &none), "--allow rotate=DATASET", "the client gets the required grant")
	require.Error(t, aside("vault/a", "vault/a"+ending))
	require.Error(t, mayProperties(t.Context(), g, &hosts.PropertyQuery{Names: []string{old}, Properties: []string{"guid"}}))
}

// TestFollowGrant expects that a follow grant permits renaming the descendants of a dataset within it,
// and nothing else.
func TestFollowGrant(t *testing.T) {
	t.Parallel()
	s := hosts.On(zfsmem.New("vault/a/x", "vault/b"), "test", func(string) {})
	defer s.Close()
	guard := func(allow ...string) *Guard {
		p, err := Parse(allow, nil, true)
		require.NoError(t, err)
		return NewGuard(p, s, func(string) {})
	}
	follow := func(g *Guard, dataset, as string) error {
		return mayRenameCopies(t.Context(), g, &[]zfs.RenamedCopy{{Dataset: dataset, GUID: 1, As: as, Base: 2}})
	}
	none := []zfs.RenamedCopy{}
	g := guard("receive=vault/a", "receive=vault/b", "follow=vault/a", "follow=vault/b")
	require.NoError(t, follow(g, "vault/a/x", "vault/a/y/z"))
	require.NoError(t, mayRenameCopies(t.Context(), g, &none))
	for dataset, as := range map[string]string{
		"vault/a":                   "vault/a2",    // the root of the granted tree
		"vault/a/x":                 "vault/b/x",   // into another tree, although that is granted, too
		"vault/c/x":                 "vault/a/x",   // from outside
		"vault/a/y":                 "vault/c",     // to outside
		"vault/a/z":                 "vault/a/z/z", // below itself
		"vault/a/u" + endingOfTests: "vault/a/u",   // a diverged copy
		"vault/a/v":                 "vault/a",     // the root's name
		"vault/a/w":                 "vault/a/../c",
	} {
		require.Error(t, follow(g, dataset, as), dataset)
	}
	g = guard("receive=vault/a", "rotate=vault/a")
	require.Error(t, follow(g, "vault/a/x", "vault/a/y"))
	require.ErrorContains(t, mayRenameCopies(t.Context(), g, &none), "--allow follow=DATASET", "the client gets the required grant")
	_, err := Parse([]string{"receive=vault/a", "follow=vault/b"}, nil, true)
	require.ErrorContains(t, err, "follow=vault/b has no effect without permission to receive there")
}

// TestRemoveGrant expects that a remove grant applies to copies below it that belong to a job, and
// never with append-only.
func TestRemoveGrant(t *testing.T) {
	t.Parallel()
	s := hosts.On(zfsmem.New("vault/a/x", "vault/b"), "test", func(string) {})
	defer s.Close()
	guard := func(appendOnly bool, allow ...string) *Guard {
		p, err := Parse(allow, nil, appendOnly)
		require.NoError(t, err)
		return NewGuard(p, s, func(string) {})
	}
	remove := func(g *Guard, dataset, tag string) error {
		return mayDestroyOrphans(t.Context(), g, &[]zfs.Orphan{{Dataset: dataset, GUID: 1, Tag: tag}})
	}
	none := []zfs.Orphan{}
	g := guard(false, "receive=vault/a", "receive=vault/b", "remove=vault/a")
	require.NoError(t, remove(g, "vault/a/x", "zxfer:j:t"))
	require.NoError(t, mayDestroyOrphans(t.Context(), g, &none))
	for dataset, tag := range map[string]string{
		"vault/a":                   "zxfer:j:t", // the root of the granted tree
		"vault/b/x":                 "zxfer:j:t",
		"vault/a/y":                 "mine",
		"vault/a/x@s":               "zxfer:j:t",
		"vault/a/z" + endingOfTests: "zxfer:j:t",
	} {
		require.Error(t, remove(g, dataset, tag), dataset)
	}
	only := &Policy{AppendOnly: true, Receive: []string{"vault/a"}, Removed: []string{"vault/a"}}
	for _, g := range []*Guard{NewGuard(only, s, func(string) {}), guard(false, "receive=vault/a")} {
		require.Error(t, remove(g, "vault/a/x", "zxfer:j:t"))
		require.Error(t, mayDestroyOrphans(t.Context(), g, &none), "the client gets the required grant")
	}
	ask := []string{}
	require.NoError(t, mayDestroy(t.Context(), g, &ask))
	require.ErrorContains(t, mayDestroy(t.Context(), guard(true, "receive=vault/a"), &ask), "append-only", "the client gets the required grant")
}

// TestContradictoryGrants expects that grants without effect are refused when a line is written
// and when it is read.
func TestContradictoryGrants(t *testing.T) {
	t.Parallel()
	for want, allow := range map[string][]string{
		"remove=vault/a has no effect with --append-only":                      {"receive=vault/a", "remove=vault/a"},
		"rotate=vault/b has no effect without permission to receive there":     {"receive=vault/a", "rotate=vault/b"},
		"rotate=tank has no effect without permission to receive there":        {"send=tank", "rotate=tank"},
		"rotate=vault/a/b has no effect without permission to receive there":   {"receive=vault/a/c", "rotate=vault/a/b"},
		"rotate=vault/hosts has no effect without permission to receive there": {"receive=vault/hosts2", "rotate=vault/hosts"},
	} {
		_, err := Parse(allow, nil, true)
		require.ErrorContains(t, err, want)
		require.Equal(t, fault.Usage, fault.ClassOf(err))
		require.NotEmpty(t, fault.HintOf(err))
	}
	_, err := Parse([]string{"remove=vault/a"}, nil, false)
	require.ErrorContains(t, err, "remove=vault/a has no effect without permission to receive there")
	require.Equal(t, "add --allow receive=vault/a", fault.HintOf(err))
	for _, allow := range [][]string{{"receive=vault", "rotate=vault/a"}, {"receive=vault/a", "rotate=vault"}, {"restore=vault/a", "rotate=vault/a"}} {
		_, err := Parse(allow, nil, true)
		require.NoError(t, err)
		_, err = Parse(append(allow, "remove=vault/a"), nil, false)
		require.NoError(t, err)
	}
}

const endingOfTests = ".zxfer-2026-11-23T10-15-00Z"

// TestDivergedCopyStaysInParent expects that a copy is renamed within its parent, not into another
// renamed dataset.
func TestDivergedCopyStaysInParent(t *testing.T) {
	t.Parallel()
	g := &Guard{policy: &Policy{Rotated: []string{"vault/hosts/web1"}, Receive: []string{"vault/hosts/web1"}},
		host: hosts.On(zfsmem.New("vault/hosts/web1"), "test", func(string) {})}
	for as, former := range map[string]string{
		"vault/hosts/web1.zxfer-2026-11-23T10-15-00Z":                            "vault/hosts/web1",
		"vault/hosts.zxfer-2026-11-23T10-15-00Z/web1":                            "",
		"vault/hosts.zxfer-2026-11-23T10-15-00Z/web1.zxfer-2026-11-23T10-15-00Z": "",
	} {
		err := mayRenameDiverged(t.Context(), g, &[]zfs.DivergedCopy{{Dataset: "vault/hosts/web1", GUID: 1, As: as}})
		if former == "" {
			former = as
			require.Error(t, err, as)
		} else {
			require.NoError(t, err, as)
		}
		require.Equal(t, former, g.nameBefore(as))
	}
}
