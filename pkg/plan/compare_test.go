package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// pairsText formats the pairs of two trees, one per line: names, relation, common version, versions
// on one side only, and the number of these that are newer.
func pairsText(t testing.TB, root string, a []*zfs.Dataset, otherRoot string, b []*zfs.Dataset) string {
	t.Helper()
	var out []string
	for _, p := range Compare(zfs.Listing{Root: root, Datasets: a}, zfs.Listing{Root: otherRoot, Datasets: b}) {
		side := func(s *PairSide) string {
			if s == nil {
				return "-"
			}
			var only []string
			for _, v := range s.Only {
				only = append(only, v.Short())
			}
			return fmt.Sprintf("%s[%s;%d]", s.Dataset, strings.Join(only, " "), s.Newer)
		}
		common := "-"
		if p.Common != nil {
			common = p.Common.Short()
		}
		out = append(out, strings.Join([]string{p.Relation, common, side(p.A), side(p.B)}, " "))
	}
	return strings.Join(out, "\n")
}

func TestCompare(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, a, b, want string }{
		{"same", "@a,1 @b,2", "@a,1 @b,2", "same @b tank/a[;0] vault/a[;0]"},
		{"same under other names", "@a,1 @b,2", "@x,1 @y,2", "same @b tank/a[;0] vault/a[;0]"},
		{"one name, two snapshots", "@a,1 @b,2", "@a,1 @b,3", "diverged @a tank/a[@b;1] vault/a[@b;1]"},
		{"retention", "@b,2 @c,3", "@a,1 @b,2 @c,3", "same-newest @c tank/a[;0] vault/a[@a;0]"},
		{"behind", "@a,1 @b,2 @c,3", "@a,1", "a-newer @a tank/a[@b @c;2] vault/a[;0]"},
		{"behind, with older snapshots", "@b,2 @c,3", "@a,1 @b,2", "a-newer @b tank/a[@c;1] vault/a[@a;0]"},
		{"ahead", "@a,1", "@a,1 @b,2", "b-newer @a tank/a[;0] vault/a[@b;1]"},
		{"diverged", "@a,1 @b,2", "@a,1 @c,3", "diverged @a tank/a[@b;1] vault/a[@c;1]"},
		{"a bookmark of A has it", "#a,1 @b,2", "@a,1", "a-newer #a tank/a[@b;1] vault/a[@a;0]"},
		{"a newer bookmark than the common snapshot", "@a,1 #b,2 @c,3", "@a,1 @b,2", "a-newer #b tank/a[@c;1] vault/a[@b;0]"},
		{"a bookmark of B has it", "@a,1", "#a,1 @b,2", "b-newer @a tank/a[@a;0] vault/a[@b;1]"},
		{"two bookmarks are not in common", "#a,1 @b,2", "#a,1 @c,3", "unrelated - tank/a[@b;1] vault/a[@c;1]"},
		{"no common snapshot", "@a,1", "@a,2", "unrelated - tank/a[@a;1] vault/a[@a;1]"},
		{"no datasets yet", "@a,1", "", "unrelated - tank/a[@a;1] vault/a[;0]"},
		{"no snapshots", "", "", "no-snapshots - tank/a[;0] vault/a[;0]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, pairsText(t, "tank/a", []*zfs.Dataset{dataset(t, "tank/a", tt.a)}, "vault/a", []*zfs.Dataset{dataset(t, "vault/a", tt.b)}))
		})
	}
}

// TestCompareTrees expects that datasets with a common version are paired by name first, otherwise
// by GUID.
func TestCompareTrees(t *testing.T) {
	t.Parallel()
	a := []*zfs.Dataset{
		dataset(t, "tank", ""), dataset(t, "tank/docs", "@a,11 @b,12"), dataset(t, "tank/mail", "@a,21"), dataset(t, "tank/new", "@a,31"),
		dataset(t, "tank/swap1", "@a,41"), dataset(t, "tank/swap2", "@a,51"),
	}
	b := []*zfs.Dataset{
		dataset(t, "vault", ""), dataset(t, "vault/papers", "@a,11"), dataset(t, "vault/mail", "", "inconsistent=1"), dataset(t, "vault/old", "@a,61"),
		dataset(t, "vault/swap1", "@a,51"), dataset(t, "vault/swap2", "@a,41"),
	}
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
a-newer @a tank/docs[@b;1] vault/papers[;0]
half-received - tank/mail[@a;1] vault/mail[;0]
only-a - tank/new[@a;1] -
only-b - - vault/old[@a;1]
same @a tank/swap1[;0] vault/swap2[;0]
same @a tank/swap2[;0] vault/swap1[;0]`, pairsText(t, "tank", a, "vault", b))
	// After a promotion, the common snapshots belong to the other dataset.
	a = []*zfs.Dataset{dataset(t, "tank/p", ""), dataset(t, "tank/p/clone", "@a,1 @b,2 @c,4"), dataset(t, "tank/p/orig", "@d,3")}
	b = []*zfs.Dataset{dataset(t, "vault/p", ""), dataset(t, "vault/p/clone", "@c,4"), dataset(t, "vault/p/orig", "@a,1 @b,2 @d,3")}
	require.Equal(t, `no-snapshots - tank/p[;0] vault/p[;0]
same-newest @c tank/p/clone[@a @b;0] vault/p/clone[;0]
same-newest @d tank/p/orig[;0] vault/p/orig[@a @b;0]`, pairsText(t, "tank/p", a, "vault/p", b))
}

// TestCompareCopies expects that a dataset is paired once, also if several copies have its
// versions, and that two bookmarks of a version pair no datasets.
func TestCompareCopies(t *testing.T) {
	t.Parallel()
	tank, vault := dataset(t, "tank", ""), dataset(t, "vault", "")
	a := []*zfs.Dataset{tank, dataset(t, "tank/x", "@a,1 @b,2")}
	b := []*zfs.Dataset{vault, dataset(t, "vault/y", "@a,1 @b,2"), dataset(t, "vault/z", "@a,1")}
	pairs := Compare(zfs.Listing{Root: "tank", Datasets: a}, zfs.Listing{Root: "vault", Datasets: b})
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
same @b tank/x[;0] vault/y[;0]
only-b - - vault/z[@a;1]`, pairsText(t, "tank", a, "vault", b))
	require.False(t, pairs[0].Renamed)
	require.True(t, pairs[1].Renamed)
	require.Equal(t, 2, pairs[1].Shared)
	require.Equal(t, `no-snapshots - vault[;0] tank[;0]
same @b vault/y[;0] tank/x[;0]
only-a - vault/z[@a;1] -`, pairsText(t, "vault", b, "tank", a))
	a[1], b = dataset(t, "tank/x", "#a,1 @b,2"), []*zfs.Dataset{vault, dataset(t, "vault/y", "#a,1 @c,3")}
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
only-a - tank/x[@b;1] -
only-b - - vault/y[@c;1]`, pairsText(t, "tank", a, "vault", b))
	b[1] = dataset(t, "vault/y", "@a,1 @c,3")
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
diverged #a tank/x[@b;1] vault/y[@a @c;1]`, pairsText(t, "tank", a, "vault", b))
	b[1] = dataset(t, "vault/y", "@a,1 #b,2")
	a[1] = dataset(t, "tank/x", "@a,1 @b,2")
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
same-newest @b tank/x[@b;0] vault/y[;0]`, pairsText(t, "tank", a, "vault", b))
	require.Empty(t, Compare(zfs.Listing{Root: "tank", Datasets: []*zfs.Dataset{tank}}, zfs.Listing{Root: "vault"})[0].A.Streams())
}

func TestCompareResume(t *testing.T) {
	t.Parallel()
	text, token := capturedToken(t, "full")
	resume := func(token string) *PairResume {
		b := dataset(t, "vault/a", "", "inconsistent=1", "receive_resume_token="+token)
		return Compare(zfs.Listing{Root: "tank/a", Datasets: []*zfs.Dataset{dataset(t, "tank/a", "@a,1")}}, zfs.Listing{Root: "vault/a", Datasets: []*zfs.Dataset{b}})[0].B.Resume
	}
	require.Equal(t, &PairResume{Snapshot: token.ToName, Bytes: token.Bytes}, resume(text))
	require.Nil(t, resume("1-forged"))
	require.Nil(t, resume("-"))
}

// TestCompareDivergedCopy expects that a renamed diverged copy is no difference and matches no other
// dataset, unless it is the root of the comparison.
func TestCompareDivergedCopy(t *testing.T) {
	t.Parallel()
	const aside = "vault/a.zxfer-2026-11-23T10-15-00Z"
	a := []*zfs.Dataset{dataset(t, "tank/a", "@x,1 @y,2"), dataset(t, "tank/a/b", "@x,11")}
	b := []*zfs.Dataset{dataset(t, aside, "@x,1 @z,3"), dataset(t, aside+"/b", "@x,11")}
	tank := []*zfs.Dataset{dataset(t, "tank", "")}
	vault := []*zfs.Dataset{dataset(t, "vault", "")}
	require.Equal(t, `no-snapshots - tank[;0] vault[;0]
only-a - tank/a[@x @y;2] -
set-aside - - vault/a.zxfer-2026-11-23T10-15-00Z[@x @z;0]
set-aside - - vault/a.zxfer-2026-11-23T10-15-00Z/b[@x;0]
only-a - tank/a/b[@x;1] -`, pairsText(t, "tank", append(tank, a...), "vault", append(vault, b...)))
	require.Equal(t, `diverged @x tank/a[@y;1] vault/a.zxfer-2026-11-23T10-15-00Z[@z;1]
same @x tank/a/b[;0] vault/a.zxfer-2026-11-23T10-15-00Z/b[;0]`, pairsText(t, "tank/a", a, aside, b))
	begun := append(vault, append(b, dataset(t, "vault/a", "@x,1 @y,2"), dataset(t, "vault/a/b", "@x,11"))...)
	for _, p := range Compare(zfs.Listing{Root: "tank", Datasets: append(tank, a...)}, zfs.Listing{Root: "vault", Datasets: begun}) {
		require.False(t, p.Differs(false), p.RelativeName())
	}
}

func TestCompareDiffersAndStreams(t *testing.T) {
	t.Parallel()
	pair := func(a, b string) *Pair {
		return Compare(zfs.Listing{Root: "a", Datasets: []*zfs.Dataset{dataset(t, "a", a)}}, zfs.Listing{Root: "b", Datasets: []*zfs.Dataset{dataset(t, "b", b, "encryption=on")}})[0]
	}
	for _, tt := range []struct {
		a, b           string
		differ, newest bool
	}{
		{"@a,1", "@a,1", false, false}, {"", "", false, false}, {"@a,1 @b,2", "@b,2", true, false}, {"@a,1 @b,2", "@a,1", true, true}, {"@a,1", "@b,2", true, true},
	} {
		require.Equal(t, tt.differ, pair(tt.a, tt.b).Differs(false), tt)
		require.Equal(t, tt.newest, pair(tt.a, tt.b).Differs(true), tt)
	}
	lc := zfs.StreamFlags{LargeBlocks: true, Compressed: true}
	require.Equal(t, []zfs.SendSpec{{Dataset: "a", From: "@a", Through: []string{"b"}, To: "c", Flags: lc}}, pair("@a,1 @b,2 @c,3", "@a,1").A.Streams())
	require.Equal(t, []zfs.SendSpec{{Dataset: "a", From: "#a", To: "b", Flags: lc}, {Dataset: "a", From: "@b", To: "c", Flags: lc}}, pair("#a,1 @b,2 @c,3", "@a,1").A.Streams())
	require.Equal(t, []zfs.SendSpec{{Dataset: "b", To: "x", Flags: zfs.StreamFlags{Raw: true}}, {Dataset: "b", From: "@x", To: "y", Flags: zfs.StreamFlags{Raw: true}}}, pair("@a,1", "@x,8 @y,9").B.Streams())
	require.Empty(t, pair("@a,1 @b,2", "@b,2").A.Streams(), "older snapshots need no stream")
}

// TestCompareIdenticalSides compares with a side that has the same versions in every dataset.
func TestCompareIdenticalSides(t *testing.T) { //nolint:paralleltest // it measures processor time
	const versions = 20
	all := make([]zfs.Version, versions)
	for i := range versions {
		all[i] = zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprint("s", i), GUID: uint64(i + 1), CreateTXG: uint64(i + 1)}
	}
	testenv.Linear(t, 100, func(n int) func() {
		a, b := zfs.Listing{Root: "a"}, zfs.Listing{Root: "b"}
		for i := range n {
			a.Datasets = append(a.Datasets, &zfs.Dataset{Name: fmt.Sprint("a/x", i), Versions: all[i%versions:][:1]})
			b.Datasets = append(b.Datasets, &zfs.Dataset{Name: fmt.Sprint("b/y", i), Versions: all})
		}
		return func() { require.NotEmpty(t, Compare(a, b)) }
	})
}
