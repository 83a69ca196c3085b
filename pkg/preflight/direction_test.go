package preflight

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// TestDirection expects a warning about a copy whose role changed in an earlier version.
func TestDirection(t *testing.T) {
	t.Parallel()
	local := func(set map[string]string) map[string]zfs.Property {
		out := map[string]zfs.Property{"written": {Value: "0"}}
		for k, v := range set {
			out[k] = zfs.Property{Value: v, Source: "local"}
		}
		return out
	}
	role := zfs.Role{Kind: zfs.RoleStandby, ID: "0123456789abcdef", Job: "home", Target: "near"}
	role.Since = role.Since.AddDate(2000, 0, 0)
	for name, c := range map[string]struct {
		target map[string]string
		want   bool
	}{
		"exposed":  {map[string]string{zfs.FlagsProperty: "Lc", zfs.RoleProperty: role.String()}, true},
		"recorded": {map[string]string{zfs.FlagsProperty: "Lc", zfs.RoleProperty: role.String(), zfs.DirectionProperty: "11-0"}, false},
		"normal":   {map[string]string{zfs.FlagsProperty: "Lc"}, false},
	} {
		x, y := zfs.Version{Kind: zfs.Snapshot, Name: "x", GUID: 1, CreateTXG: 1}, zfs.Version{Kind: zfs.Snapshot, Name: "y", GUID: 2, CreateTXG: 2}
		state := plan.State{
			Source: zfs.Listing{Root: "src/a", Datasets: []*zfs.Dataset{{Name: "src/a", GUID: 11, Type: zfs.Filesystem, Properties: local(nil), Versions: []zfs.Version{x, y}}}},
			Target: zfs.Listing{Root: "dst/a", Datasets: []*zfs.Dataset{{Name: "dst/a", GUID: 22, Type: zfs.Filesystem, Properties: local(c.target), Versions: []zfs.Version{x}}}},
		}
		p := plan.Make(plan.Request{Source: "src/a", Target: "dst/a"}, state)
		require.Empty(t, p.Conflicts)
		require.Equal(t, c.want, len(direction(&Input{Plan: p})) == 1, name)
	}
}
