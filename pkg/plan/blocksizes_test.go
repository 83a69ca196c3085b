package plan

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestLosesBlocks has the cases of openzfs#18663, seen with OpenZFS 2.1.11, 2.3.9 and 2.4.4.
func TestLosesBlocks(t *testing.T) {
	t.Parallel()
	const k = 1 << 10
	for name, c := range map[string]struct {
		source, target Stored
		want           bool
	}{
		"64K and a file of one block of 128K":    {Stored{128 * k, 64 * k, false}, Stored{128 * k, 128 * k, true}, true},
		"16K and a file of one block of 48K":     {Stored{48 * k, 16 * k, false}, Stored{48 * k, 48 * k, true}, true},
		"64K and 128K, several blocks: refused":  {Stored{1024 * k, 64 * k, false}, Stored{1024 * k, 128 * k, false}, true},
		"128K and 1M: requires -L, or lost":      {Stored{1000 * k, 128 * k, false}, Stored{1000 * k, 1000 * k, true}, true},
		"128K and one block of 64K":              {Stored{30 * k, 128 * k, true}, Stored{30 * k, 64 * k, true}, true},
		"128K and several blocks of 64K":         {Stored{1024 * k, 128 * k, false}, Stored{1024 * k, 64 * k, false}, false},
		"equal, one block":                       {Stored{10 * k, 128 * k, true}, Stored{10 * k, 128 * k, true}, false},
		"equal, several blocks":                  {Stored{1024 * k, 64 * k, false}, Stored{1024 * k, 64 * k, false}, false},
		"an empty file has nothing to lose":      {Stored{0, 128 * k, true}, Stored{0, 64 * k, true}, false},
		"an empty file of several larger blocks": {Stored{0, 64 * k, true}, Stored{0, 128 * k, true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, LosesBlocks(c.source, c.target))
		})
	}
}

// TestPairOf covers the histories of a pair.
func TestPairOf(t *testing.T) {
	t.Parallel()
	const s, o, third = 11, 22, 33 // GUIDs of source, target and another dataset
	base := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: 5, CreateTXG: 100}
	at := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: 5, CreateTXG: 200}
	record := func(from, since uint64) string { return zfs.Direction{From: from, Since: since}.String() }
	none, received := map[string]string{}, map[string]string{zfs.FlagsProperty: "Lc"}
	with := func(direction string) map[string]string {
		return map[string]string{zfs.FlagsProperty: "Lc", zfs.DirectionProperty: direction}
	}
	for name, c := range map[string]struct {
		source, target    map[string]string
		role              zfs.RoleKind
		compare, required bool
	}{
		"received in full from the source":         {none, with(record(s, 0)), "", false, false},
		"compared":                                 {received, with(record(s, 200)), zfs.RoleStandby, false, false},
		"compared at a later snapshot":             {received, with(record(s, 201)), zfs.RoleStandby, true, true},
		"received from another dataset":            {none, with(record(third, 0)), "", true, true},
		"the source received from the target":      {with(record(o, 0)), with(record(s, 0)), "", true, true},
		"the source was restored from the target":  {with(record(o, 0)), received, "", true, true},
		"the source was restored from a third one": {with(record(third, 0)), received, "", true, true},
		"an invalid record":                        {none, with("11"), "", true, true},
		"a copy of an earlier version":             {none, received, "", false, false},
		"a relay's copy of an earlier version":     {received, map[string]string{zfs.FlagsProperty: "Lc", zfs.OriginProperty: "{}"}, "", false, false},
		"roles changed in an earlier version":      {none, received, zfs.RoleStandby, true, true},
		"sent back":                                {received, none, "", true, true},
		"both received":                            {received, received, "", true, false},
		"a copy of another program":                {none, none, "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dataset := func(name string, guid uint64, set map[string]string) *zfs.Dataset {
				d := &zfs.Dataset{Name: name, GUID: guid, Properties: map[string]zfs.Property{}}
				for k, v := range set {
					d.Properties[k] = zfs.Property{Value: v, Source: "local"}
				}
				return d
			}
			p := PairOf(dataset("src/a", s, c.source), dataset("dst/a", o, c.target), base, at, zfs.Role{Kind: c.role})
			require.Equal(t, c.compare, p != nil)
			if p != nil {
				require.Equal(t, c.required, p.Required)
				require.Equal(t, "src/a@x", p.Source)
				require.Equal(t, "dst/a@x", p.Target)
			}
		})
	}
}

// TestRiskRefuses expects a conflict for a risk, and for an impossible comparison if the direction changed.
// Otherwise the first stream records the direction.
func TestRiskRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		required bool
		risk     BlockRisk
		refused  bool
	}{
		"no risk":                       {true, BlockRisk{}, false},
		"risk":                          {true, BlockRisk{Count: 1, Files: []string{"f"}}, true},
		"risk, and perhaps no change":   {false, BlockRisk{Count: 1, Files: []string{"f"}}, true},
		"impossible":                    {true, BlockRisk{Refused: errors.New("no")}, true},
		"impossible, perhaps no change": {false, BlockRisk{Refused: errors.New("no")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, target := &zfs.Dataset{Name: "src/a", GUID: 11, Type: zfs.Filesystem}, &zfs.Dataset{Name: "dst/a", GUID: 22, Type: zfs.Filesystem}
			source.Properties = map[string]zfs.Property{zfs.DirectionProperty: {Value: "22-7", Source: "local"}}
			d := &Dataset{Source: "src/a", Target: "dst/a", Steps: []Step{{Kind: Incremental}}, blocks: &BlockPair{Source: "src/a@x", Target: "dst/a@x", Required: c.required, since: 200}}
			p := &Plan{Datasets: []*Dataset{d}}
			s := State{Source: zfs.Listing{Root: "src/a", Datasets: []*zfs.Dataset{source}}, Target: zfs.Listing{Root: "dst/a", Datasets: []*zfs.Dataset{target}}}
			CheckBlockSizes(p, Request{Source: "src/a", Target: "dst/a"}, s, map[string]BlockRisk{p.Datasets[0].blocks.Key(): c.risk})
			require.Equal(t, c.refused, len(p.Conflicts) == 1)
			if c.refused {
				require.Equal(t, BlockSizes, p.Conflicts[0].ID)
				require.Empty(t, d.Steps[0].Receive.Set)
				return
			}
			if c.risk.Refused != nil {
				require.Empty(t, d.Steps[0].Receive.Set)
				return
			}
			require.Equal(t, "11-200", d.Steps[0].Receive.Set[zfs.DirectionProperty])
			require.True(t, d.EndsDirection)
		})
	}
}
