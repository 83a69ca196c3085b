package site

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestCheckListing(t *testing.T) {
	t.Parallel()
	named := func(names ...string) (all []*zfs.Dataset) {
		for _, n := range names {
			all = append(all, &zfs.Dataset{Name: n})
		}
		return all
	}
	versions := func(v ...zfs.Version) zfs.Listing {
		return zfs.Listing{Datasets: []*zfs.Dataset{{Name: "tank/a", Versions: v}}}
	}
	a := ListQuery{Dataset: "tank/a"}
	below := ListQuery{Dataset: "tank/a", Recursive: true}
	only := ListQuery{Dataset: "tank/a", Recursive: true, Only: []string{"tank/a/x", "tank/a/y"}}
	for name, c := range map[string]struct {
		q    ListQuery
		l    zfs.Listing
		says string // "" = it is an answer
	}{
		"nothing":             {a, zfs.Listing{}, ""},
		"itself":              {a, zfs.Listing{Datasets: named("tank/a"), Ancestors: named("tank")}, ""},
		"below":               {below, zfs.Listing{Datasets: named("tank/a", "tank/a/b c")}, ""},
		"some":                {only, zfs.Listing{Datasets: named("tank/a/y")}, ""},
		"versions":            {a, versions(zfs.Version{Kind: "@", Name: "x y"}, zfs.Version{Kind: "#", Name: "x"}), ""},
		"null":                {a, zfs.Listing{Datasets: []*zfs.Dataset{nil}}, "without a name"},
		"null above":          {a, zfs.Listing{Ancestors: []*zfs.Dataset{nil}}, "without a name"},
		"another":             {a, zfs.Listing{Datasets: named("tank/b")}, `"tank/b" was listed`},
		"same beginning":      {below, zfs.Listing{Datasets: named("tank/ab")}, `"tank/ab" was listed`},
		"below, not asked":    {a, zfs.Listing{Datasets: named("tank/a/b")}, `"tank/a/b" was listed`},
		"the pool":            {below, zfs.Listing{Datasets: named("tank")}, `"tank" was listed`},
		"not one of some":     {only, zfs.Listing{Datasets: named("tank/a/z")}, `"tank/a/z" was listed`},
		"escape":              {below, zfs.Listing{Datasets: named("tank/a/../b")}, ".."},
		"not above":           {a, zfs.Listing{Ancestors: named("other")}, "above"},
		"name with a newline": {below, zfs.Listing{Datasets: named("tank/a/b\nc")}, `\n`},
		"version of no kind":  {a, versions(zfs.Version{Name: "x"}), "snapshot"},
		"version of another":  {a, versions(zfs.Version{Kind: "/b@", Name: "x"}), "listed"},
		"range of versions":   {a, versions(zfs.Version{Kind: "@", Name: "x%y"}), "%"},
	} {
		err := CheckListing(c.q, &c.l)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
}
