package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

func TestTargetName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ source, typed, want string }{
		{"tank/a/b", "pool", "pool/a/b"},
		{"tank/a/b", "pool/", "pool/a/b"},
		{"tank/a/b", "x/y/", "x/y/a/b"},
		{"tank/a/b", "x/y", "x/y"},
		{"tank", "pool", "pool"},
		{"tank", "x/y/", "x/y"},
		{"tank", "x/y", "x/y"},
	} {
		got, err := TargetName(tt.source, tt.typed)
		require.NoError(t, err)
		require.Equal(t, tt.want, got, "%s to %s", tt.source, tt.typed)
	}
	for _, typed := range []string{"", "/", "pool//", "pool/a%b", "pool/a@b", "-pool", "pool/" + strings.Repeat("x", 300)} {
		_, err := TargetName("tank/a", typed)
		require.Error(t, err, typed)
		require.Equal(t, fault.Usage, fault.ClassOf(err), typed)
		p := mustMake(t, request().with(func(r *Request) { r.Target = typed }), stateOf(dataset(t, "tank/a", "@a,1")))
		requireConflict(t, p, BadName)
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	a := dataset(t, "tank/a", "@a,1")
	same := stateOf(a)
	same.SameHost, same.TargetHost = true, "alpha"
	same.Target = zfs.Listing{Pool: same.Source.Pool, Ancestors: []*zfs.Dataset{{Name: "tank", Type: zfs.Filesystem}}}
	to := func(target string, recursive bool) Request {
		return request().with(func(r *Request) { r.Target, r.Recursive = target, recursive })
	}
	requireConflict(t, mustMake(t, to("tank/a", false), same), SameDataset, "alpha:tank/a")
	requireConflict(t, mustMake(t, to("tank", false), same), SameDataset)
	requireConflict(t, mustMake(t, to("tank/a/copy", true), same), SameDataset, "is a descendant")
	require.Equal(t, "full @a", stepsText(onlyDataset(t, mustMake(t, to("tank/b", true), same))))
	require.Equal(t, "full @a", stepsText(onlyDataset(t, mustMake(t, to("tank/ab", true), same))), "a name with the same prefix")
	require.Equal(t, "full @a", stepsText(onlyDataset(t, mustMake(t, to("tank/a/copy", false), same))), "a copy below, without descendants")
	other := stateOf(a)
	require.Equal(t, "full @a", stepsText(onlyDataset(t, mustMake(t, to("tank/a", false), other))), "another host's pool of the same name")

	volume := stateOf(a)
	volume.Target.Ancestors = append(volume.Target.Ancestors, &zfs.Dataset{Name: "vault/v", Type: zfs.Volume})
	requireConflict(t, mustMake(t, to("vault/v/", false), volume), TypeMismatch, "vault/v is a volume")

	require.False(t, onlyDataset(t, mustMake(t, to("vault", false), stateOf(a))).CreateParents)
	require.True(t, onlyDataset(t, mustMake(t, to("vault/x/", false), stateOf(a))).CreateParents)
}

// TestPoolRoot expects that a full stream to the root of a pool is refused, because it always
// exists.
func TestPoolRoot(t *testing.T) {
	t.Parallel()
	root := func(versions string) State {
		s := stateOf(dataset(t, "tank", "@a,1"), dataset(t, "vault", versions))
		s.Target.Ancestors = nil
		return s
	}
	req := Request{Source: "tank", Target: "vault"}
	p := mustMake(t, req, root(""))
	requireConflict(t, p, NoCommon, "vault/NAME")
	require.NotContains(t, p.Conflicts[0].Remedy, "zfs rename", "a pool's root cannot be renamed")
	require.Empty(t, onlyDataset(t, mustMake(t, req, root("@a,1"))).Steps)
	into := onlyDataset(t, mustMake(t, Request{Source: "tank", Target: "vault/tank"}, root("")))
	require.Equal(t, "full @a", stepsText(into))
	require.False(t, into.CreateParents)
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 200)
	p := mustMake(t, request().with(func(r *Request) { r.Target = "vault/" + strings.Repeat("x", 60) }), stateOf(dataset(t, "tank/a", "@"+long+",1 @b,2")))
	requireConflict(t, p, BadName, long, "255")
	latest := request().with(func(r *Request) { r.Target, r.LatestOnly = "vault/"+strings.Repeat("x", 60), true })
	require.Equal(t, "full @b", stepsText(onlyDataset(t, mustMake(t, latest, stateOf(dataset(t, "tank/a", "@"+long+",1 @b,2"))))), "snapshots that are not sent do not matter")

	deep := "tank/a" + strings.Repeat("/d", 47)
	state := stateOf(dataset(t, "tank/a", "@a,1"), dataset(t, deep, "@a,1"))
	p = mustMake(t, Request{Source: "tank/a", Target: "vault/1/2/3/", Recursive: true}, state)
	requireConflict(t, p, BadName, "levels")
	require.Equal(t, deep, p.Conflicts[0].Source)
}

// TestPromotedTarget refuses to send into a copy that became the source, or below one. Only a
// restore may, because it restores a source.
func TestPromotedTarget(t *testing.T) {
	t.Parallel()
	role := "source 1111111111111111 - home near 1795687500"
	local, inherited := zfs.Property{Value: role, Source: "local"}, zfs.Property{Value: role, Source: "inherited from vault/x"}
	for name, tt := range map[string]struct {
		at      string
		role    zfs.Property
		refused bool
	}{
		"promoted":         {"vault/a", local, true},
		"ancestor":         {"vault", local, true},
		"unlisted above":   {"vault/a", inherited, true},
		"received":         {"vault/a", zfs.Property{Value: role, Source: "received"}, false},
		"standby":          {"vault/a", zfs.Property{Value: strings.Replace(role, "source", "standby", 1), Source: "local"}, false},
		"handover":         {"vault/a", zfs.Property{Value: strings.Replace(role, "source", "handover", 1), Source: "local"}, true},
		"written by hand":  {"vault/a", zfs.Property{Value: "boss", Source: "local"}, true},
		"another dataset":  {"vault/b", local, false},
		"no role recorded": {"vault/a", zfs.Property{Value: "-", Source: "-"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1"), dataset(t, "vault/b", "@a,1"))
			s.Target.Find(tt.at).Properties = map[string]zfs.Property{zfs.RoleProperty: tt.role}
			p := mustMake(t, request(), s)
			if !tt.refused {
				require.Empty(t, p.Conflicts)
				return
			}
			requireConflict(t, p, Promoted, "zfs inherit zxfer:role "+map[string]string{"unlisted above": "vault/x"}[name])
			restore := mustMake(t, request().with(func(r *Request) { r.Restore = true }), s)
			require.Empty(t, restore.Conflicts)
		})
	}
}
