package plan

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

func TestDivergedCopyName(t *testing.T) {
	t.Parallel()
	const ending = ".zxfer-2026-11-23T10-15-00Z"
	long := "p/" + strings.Repeat("x", zfs.MaxName-len("p/")-len(ending)-4)
	for name, c := range map[string]struct {
		target   string
		snapshot string
		rotate   string
		copies   map[string]bool
		aside    bool
	}{
		"a copy":                {"p/copy", "other", ending, nil, true},
		"a known copy":          {"p/copy", "other", ending, map[string]bool{"p/copy": true}, true},
		"not a copy":            {"p/copy", "other", ending, map[string]bool{}, false},
		"not a copy, requested": {"p/copy", "other", "", nil, false},
		"the root of a pool":    {"p/", "other", ending, nil, false},
		"longest name":          {long, "x", ending, nil, true},
		"name too long":         {long, "long", ending, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := strings.TrimSuffix(c.target, "/")
			source := &zfs.Dataset{Name: "s", Type: zfs.Filesystem, GUID: 1, Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "a", GUID: 10, CreateTXG: 1}}}
			counterpart := &zfs.Dataset{Name: at, Type: zfs.Filesystem, GUID: 2, Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: c.snapshot, GUID: 20, CreateTXG: 1}}}
			below := &zfs.Dataset{Name: at + "/b", Type: zfs.Filesystem, GUID: 3}
			pool := &zfs.Dataset{Name: "p", Type: zfs.Filesystem, GUID: 4}
			s := State{Source: zfs.Listing{Root: "s", Datasets: []*zfs.Dataset{source}}, Target: zfs.Listing{Root: at, Datasets: []*zfs.Dataset{counterpart, below}}}
			if at != "p" {
				s.Target.Ancestors = []*zfs.Dataset{pool}
			}
			req := Request{Source: "s", Target: c.target, Recursive: true, Rotate: c.rotate, Copies: c.copies}
			p := Make(req, s)
			require.Equal(t, NoCommon, p.Conflicts[0].ID)
			before := len(s.Target.Datasets)
			require.Equal(t, c.aside, Rotate(&p, req, &s))
			if !c.aside {
				require.Len(t, s.Target.Datasets, before)
				return
			}
			require.Empty(t, s.Target.Datasets, "descendants are renamed with it")
			p = Make(req, s)
			require.Empty(t, p.Conflicts)
			require.Equal(t, &DivergedRename{As: at + ending, GUID: 2, Why: "it has no common snapshot with s"}, p.Datasets[0].Rename)
			require.Equal(t, Full, p.Datasets[0].Steps[0].Kind)
			req.First = FirstFail
			p = Make(req, s)
			require.Empty(t, p.Conflicts, "the limit was requested")
			require.False(t, Rotate(&p, req, &s))
		})
	}
}
