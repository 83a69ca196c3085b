package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestRelocate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ source, target, name, want string }{
		{"tank/a", "vault/a", "tank/a@s", "vault/a@s"},
		{"tank/a", "vault/a", "tank/b@s", "vault/b@s"},
		{"tank/a", "vault/a", "tank", "vault"},
		{"tank/a", "vault/x", "tank/a/b@s", "vault/x/b@s"},
		{"tank/a", "vault/x", "tank/a", "vault/x"},
		{"tank/a", "vault/x", "tank/ab@s", ""},
		{"tank/a", "vault/x", "tank/b@s", ""},
		{"tank/a", "vault/x/a", "tank/b/c@s", "vault/x/b/c@s"},
		{"tank/a", "vault/x/a", "tank2/b@s", ""},
	} {
		got, ok := relocate(tt.source, tt.target, tt.name)
		require.Equal(t, tt.want, got, "%s to %s: %s", tt.source, tt.target, tt.name)
		require.Equal(t, tt.want != "", ok)
	}
}

// If the target has a clone's origin more than once, zxfer takes the snapshot next to the clone.
func TestOriginOfItsOwnCopy(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	s := given(dataset(t, "tank/a", "@s,1"), dataset(t, "tank/a/c", "@t,2", "origin=tank/a@s"),
		dataset(t, "vault/0", "@s,1"), dataset(t, "vault/a", "@s,1"))
	p := made(t, req, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, "clone tank/a@s>@t", steps(p.Datasets[1]))
	require.Equal(t, "vault/a@s", p.Datasets[1].Steps[0].Receive.Origin)
}

// The origin of a new clone may be an old snapshot: the whole history of every copy is
// needed. Otherwise only names that a copy must not have.
func TestNeedHistoriesOfClones(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Recursive = true })
	need := func(more ...*zfs.Dataset) (Plan, []string, []string) {
		s := given(slices.Concat([]*zfs.Dataset{dataset(t, "tank/a", "@s,1 @t,2")}, more, []*zfs.Dataset{dataset(t, "vault/a", "@t,2")})...)
		s.Target.Datasets[0].NewestOnly = true
		p := Make(req, s)
		datasets, names := NeedHistories(p, s)
		return p, datasets, names
	}
	_, datasets, names := need(dataset(t, "tank/a/c", "@u,3", "origin=tank/a@s"))
	require.Equal(t, []string{"vault/a"}, datasets)
	require.Empty(t, names)
	_, datasets, _ = need(dataset(t, "tank/a/c", "@u,3"))
	require.Empty(t, datasets, "a new dataset that is no clone")
	p := made(t, req, given(dataset(t, "tank/a", "@s,1 @t,2"), dataset(t, "tank/a/c", "@u,3", "origin=tank/a@s"), dataset(t, "vault/a", "@s,1 @t,2")))
	require.Equal(t, "clone tank/a@s>@u", steps(p.Datasets[1]))

	s := given(dataset(t, "tank/a", "@t,2"), dataset(t, "tank/a/c", "@u,3 @v,4", "origin=tank/a@s"), dataset(t, "vault/a", "@t,2"), dataset(t, "vault/a/c", "@u,3"))
	for _, d := range s.Target.Datasets {
		d.NewestOnly = true
	}
	datasets, names = NeedHistories(Make(req, s), s)
	require.Empty(t, datasets, "a clone that the target has")
	require.Equal(t, []string{"vault/a/c@v"}, names)
}

// A snapshot of the target that the source lacks makes it diverged, even if the target
// also has newer snapshots of the source.
func TestDivergedBetweenKnownSnapshots(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Snapshot = "a" })
	source := dataset(t, "tank/a", "@z,9 @a,1 @b,2")
	refused(t, made(t, req, given(source, dataset(t, "vault/a", "@z,9 @b,2 @x,99"))), Diverged, "has diverged", "@x")
	refused(t, made(t, req, given(source, dataset(t, "vault/a", "@z,9 @x,99 @b,2"))), Diverged, "has diverged", "@x")
	refused(t, made(t, req, given(source, dataset(t, "vault/a", "@z,9 @b,2"))), Diverged, "already has @b")
}

// Bookmarks of the target take no name from snapshots.
func TestBookmarksTakeNoName(t *testing.T) {
	t.Parallel()
	p := made(t, request(), given(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "#b,50 @a,1")))
	require.Equal(t, "@a>@b", steps(only(t, p)))
}
