package cli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs/zfstest"
)

// After a snapshot for healing, "written" no longer counts earlier writes. So Revert accepts only
// read-only copies.
func TestOnlyACopyIsReverted(t *testing.T) {
	t.Parallel()
	p := zfstest.NewPool(t, zfstest.Options{})
	d := p.Create("live")
	p.Snapshot(d, "daily")
	p.Snapshot(d, "zxfer-heal-x")
	c := newCLI(t)
	require.Equal(t, fault.Refused, fault.ClassOf(c.Revert(t.Context(), d+"@daily")))
	require.Contains(t, p.ZFS("list", "-H", "-o", "name", "-t", "snapshot", "-r", d), "@zxfer-heal-x")
	p.ZFS("set", "readonly=on", d)
	require.NoError(t, c.Revert(t.Context(), d+"@daily"))
	require.NotContains(t, p.ZFS("list", "-H", "-o", "name", "-t", "snapshot", "-r", d), "@zxfer-heal-x")
}
