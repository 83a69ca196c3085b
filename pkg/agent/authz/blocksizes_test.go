package authz

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/files"
	"zxfer/pkg/zfs"
)

// TestBlockSizesGrant expects that only send and drill grants read block sizes, that only send grants read
// names, and that a source's record of its direction can be removed but not set.
func TestBlockSizesGrant(t *testing.T) {
	t.Parallel()
	for grant, want := range map[string]struct{ sums, names, revert bool }{
		"send=vault/a":    {true, true, true},
		"drill=vault/a":   {true, false, false},
		"receive=vault/a": {false, false, false},
		"restore=vault/a": {false, false, false},
		"send=vault/b":    {false, false, false},
	} {
		t.Run(grant, func(t *testing.T) {
			t.Parallel()
			p, err := Parse([]string{grant}, nil, false)
			require.NoError(t, err)
			g := NewGuard(p, vault(), func(string) {})
			check := func(want bool, err error) {
				t.Helper()
				require.Equal(t, want, err == nil, "%v", err)
			}
			check(want.sums, mayBlockSizes(t.Context(), g, &files.BlockQuery{Snapshot: "vault/a@x"}))
			check(want.sums, mayBlockSizes(t.Context(), g, &files.BlockQuery{Snapshot: "vault/a@x", Buckets: []uint16{1}}))
			check(want.names, mayBlockSizes(t.Context(), g, &files.BlockQuery{Snapshot: "vault/a@x", Inodes: []uint64{1}}))
			check(false, mayBlockSizes(t.Context(), g, &files.BlockQuery{Snapshot: "vault/a"}))
			check(want.revert, maySetProperties(t.Context(), g, &zfs.PropertyChange{Dataset: "vault/a", Revert: []string{zfs.DirectionProperty}}))
			check(false, maySetProperties(t.Context(), g, &zfs.PropertyChange{Dataset: "vault/a", Revert: []string{zfs.DirectionProperty, zfs.RoleProperty}}))
			check(false, maySetProperties(t.Context(), g, &zfs.PropertyChange{Dataset: "vault/a", Set: map[string]string{zfs.DirectionProperty: "1-0"}}))
		})
	}
}

// TestDirectionOfReceive expects that a receive may record a valid direction only.
func TestDirectionOfReceive(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"1-0": true, "18446744073709551615-7": true, "0-0": false, "1": false, "01-0": false, "1-0 x": false, "-1-0": false, "": false} {
		require.Equal(t, want, allowedProperties(false)[zfs.DirectionProperty](value), value)
	}
}
