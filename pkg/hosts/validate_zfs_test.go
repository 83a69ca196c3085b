package hosts

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestCheckListing(t *testing.T) {
	t.Parallel()
	named := func(names ...string) (all []*zfs.Dataset) {
		for _, n := range names {
			all = append(all, &zfs.Dataset{Name: n, Type: zfs.Filesystem})
		}
		return all
	}
	versions := func(v ...zfs.Version) zfs.Listing {
		return zfs.Listing{Datasets: []*zfs.Dataset{{Name: "tank/a", Type: zfs.Volume, Versions: v}}}
	}
	a := ListQuery{Dataset: "tank/a"}
	below := ListQuery{Dataset: "tank/a", Recursive: true}
	only := ListQuery{Dataset: "tank/a", Recursive: true, Only: []string{"tank/a/x", "tank/a/y"}}
	for name, c := range map[string]struct {
		q    ListQuery
		l    zfs.Listing
		says string // "" = valid
	}{
		"nothing":                    {a, zfs.Listing{}, ""},
		"the dataset":                {a, zfs.Listing{Datasets: named("tank/a"), Ancestors: named("tank")}, ""},
		"descendants":                {below, zfs.Listing{Datasets: named("tank/a", "tank/a/b c")}, ""},
		"requested datasets":         {only, zfs.Listing{Datasets: named("tank/a/y")}, ""},
		"versions":                   {a, versions(zfs.Version{Kind: "#", Name: "x", GUID: 1, CreateTXG: 1}, zfs.Version{Kind: "@", Name: "x y", GUID: 1, CreateTXG: 1}), ""},
		"null":                       {a, zfs.Listing{Datasets: []*zfs.Dataset{nil}}, "without a name"},
		"null ancestor":              {a, zfs.Listing{Ancestors: []*zfs.Dataset{nil}}, "without a name"},
		"other dataset":              {a, zfs.Listing{Datasets: named("tank/b")}, `got "tank/b"`},
		"same prefix":                {below, zfs.Listing{Datasets: named("tank/ab")}, `got "tank/ab"`},
		"descendant not requested":   {a, zfs.Listing{Datasets: named("tank/a/b")}, `got "tank/a/b"`},
		"the pool":                   {below, zfs.Listing{Datasets: named("tank")}, `got "tank"`},
		"dataset not requested":      {only, zfs.Listing{Datasets: named("tank/a/z")}, `got "tank/a/z"`},
		"name with ..":               {below, zfs.Listing{Datasets: named("tank/a/../b")}, ".."},
		"not an ancestor":            {a, zfs.Listing{Ancestors: named("other")}, "ancestor"},
		"name with a newline":        {below, zfs.Listing{Datasets: named("tank/a/b\nc")}, `\n`},
		"version without a kind":     {a, versions(zfs.Version{Name: "x"}), "snapshot"},
		"version of another dataset": {a, versions(zfs.Version{Kind: "/b@", Name: "x"}), "as a snapshot or bookmark"},
		"duplicate dataset":          {a, zfs.Listing{Datasets: named("tank/a", "tank/a")}, "twice"},
		"duplicate ancestor":         {a, zfs.Listing{Ancestors: named("tank", "tank")}, "ancestor"},
		"duplicate version":          {a, versions(zfs.Version{Kind: "@", Name: "x", GUID: 1, CreateTXG: 1}, zfs.Version{Kind: "@", Name: "x", GUID: 2, CreateTXG: 1}), "twice"},
		"duplicate GUID":             {a, versions(zfs.Version{Kind: "@", Name: "x", GUID: 1, CreateTXG: 1}, zfs.Version{Kind: "@", Name: "y", GUID: 1, CreateTXG: 1}), "twice"},
		"without a createtxg":        {a, versions(zfs.Version{Kind: "@", Name: "x", GUID: 1}), "createtxg 0"}, // made the planner panic
		"without a GUID":             {a, versions(zfs.Version{Kind: "@", Name: "x", CreateTXG: 1}), "GUID 0"},
		"out of order":               {a, versions(zfs.Version{Kind: "@", Name: "x", CreateTXG: 2}, zfs.Version{Kind: "@", Name: "y", CreateTXG: 1}), "out of order"},
		"two most recent":            {a, zfs.Listing{Datasets: []*zfs.Dataset{{Name: "tank/a", Type: zfs.Volume, NewestOnly: true, Versions: make([]zfs.Version, 2)}}}, "most recent"},
		"without a type":             {a, zfs.Listing{Datasets: []*zfs.Dataset{{Name: "tank/a"}}}, "got the type"},
		"long value":                 {a, zfs.Listing{Datasets: []*zfs.Dataset{{Name: "tank/a", Type: zfs.Volume, Properties: map[string]zfs.Property{"used": {Value: strings.Repeat("9", 1<<20)}}}}}, "used of tank/a has"},
		"another pool":               {a, zfs.Listing{Pool: zfs.Pool{Name: "other"}}, "pool"},
		"range of versions":          {a, versions(zfs.Version{Kind: "@", Name: "x%y"}), "%"},
	} {
		c.l.Root = c.q.Dataset
		err := checkListing(c.q, &c.l)
		if c.says == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
}
