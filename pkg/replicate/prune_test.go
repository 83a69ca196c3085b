package replicate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// Over random histories, retention removes just what it may: exactly what the
// oracle's grid does not keep of the job's own snapshots, less the newest,
// and less the bases of all targets.
func TestPrunableOverRandomHistories(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(9, 2026))
	removed := 0
	for range 300 {
		j := &Job{Name: "j", Snapshots: Snapshots{Take: "own-%Y%m%d%H%M", Adopt: []string{"auto-*"}}}
		s, err := j.Scope()
		require.NoError(t, err)
		g := &Grid{Last: r.IntN(4), Hourly: r.IntN(20), Daily: r.IntN(10), Weekly: r.IntN(4), Monthly: r.IntN(3)}
		source := &zfs.Dataset{Name: "tank/a"}
		created := map[string]time.Time{}
		var ours []Point
		seen := map[string]bool{}
		for i, p := range history(r, 80) {
			name := s.Naming().At(p.Time)
			switch r.IntN(6) {
			case 0:
				name = fmt.Sprintf("manual-%d", i)
			case 1:
				name = fmt.Sprintf("auto-%d", i)
				created[name] = p.Time
			case 2:
				name = fmt.Sprintf("auto-unknown-%d", i) // its time could not be read
			}
			if seen[name] {
				continue
			}
			seen[name] = true
			v := zfs.Version{Kind: zfs.Snapshot, Name: name, GUID: uint64(1000 + i), CreateTXG: uint64(10 + i)}
			source.Versions = append(source.Versions, v)
			at, own := s.Own(name)
			if !own {
				at = created[name]
			}
			if !at.IsZero() {
				ours = append(ours, Point{Name: name, Time: at, Order: v.CreateTXG})
			}
		}
		// Some targets, each with a part of the history, one base a bookmark.
		protected := map[uint64]string{}
		for range r.IntN(4) {
			target := &zfs.Dataset{Name: "vault/a"}
			for _, v := range source.Versions[:r.IntN(len(source.Versions)+1)] {
				if r.IntN(2) == 0 {
					target.Versions = append(target.Versions, v)
				}
			}
			if base, ok := CommonSnapshot(source, target); ok {
				protected[base.GUID] = "base"
			}
		}
		kept := map[string]bool{}
		for _, name := range oracle(g, ours) {
			kept[name] = true
		}
		var want []string
		newest := source.Versions[len(source.Versions)-1]
		for _, v := range source.Versions {
			_, known := created[v.Name]
			_, own := s.Own(v.Name)
			if (own || known) && !kept[v.Name] && protected[v.GUID] == "" && v.GUID != newest.GUID {
				want = append(want, v.Name)
			}
		}
		var got []string
		for _, v := range g.Prunable(source, s, created, protected, &History{}, time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)).Remove {
			got = append(got, v.Name)
		}
		require.ElementsMatch(t, want, got)
		removed += len(got)
	}
	require.Greater(t, removed, 1000, "the histories are long enough for the test to mean something")
}

func TestPrunableWithoutGrid(t *testing.T) {
	t.Parallel()
	s, err := (&Job{Name: "j", Snapshots: Snapshots{Adopt: []string{"*"}}}).Scope()
	require.NoError(t, err)
	d := &zfs.Dataset{Name: "a", Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "x", GUID: 1}}}
	var none *Grid
	require.Empty(t, none.Prunable(d, s, map[string]time.Time{"x": time.Unix(0, 0)}, nil, &History{}, time.Unix(1, 0)).Remove)
}

func TestBase(t *testing.T) {
	t.Parallel()
	v := func(kind zfs.VersionKind, guid uint64) zfs.Version {
		return zfs.Version{Kind: kind, Name: fmt.Sprint(guid), GUID: guid, CreateTXG: guid}
	}
	source := &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("#", 2), v("@", 3), v("@", 5)}}
	base, ok := CommonSnapshot(source, &zfs.Dataset{Versions: []zfs.Version{v("@", 1), v("@", 2), v("#", 3), v("@", 4)}})
	require.True(t, ok)
	require.Equal(t, uint64(2), base.GUID, "a bookmark of the source is a base, one of the target is none")
	_, ok = CommonSnapshot(source, &zfs.Dataset{})
	require.False(t, ok)
}
