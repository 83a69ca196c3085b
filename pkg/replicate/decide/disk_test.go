package decide

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// diskStates and diskEvents return all states and events, in the order of the documentation.
func diskStates() []DiskState {
	return []DiskState{DiskAway, DiskAttached, DiskImported, DiskPresent, DiskScrubbing, DiskRemovable, DiskWaiting, DiskForeign, DiskSuspended}
}

func diskEvents() []DiskEvent {
	return []DiskEvent{SeenAbsent, SeenAttached, SeenOwned, SeenImported, SeenSibling, SeenForeign, SeenSuspended, DiskImport, DiskScrub, DiskScrubbed, DiskExport}
}

func diskMachine() Machine {
	m := Machine{Name: "Disk", Next: func(s, e string) (string, error) {
		next, err := NextDisk(DiskState(s), DiskEvent(e))
		return string(next), err
	}}
	for _, s := range diskStates() {
		m.States = append(m.States, string(s))
	}
	for _, e := range diskEvents() {
		m.Events = append(m.Events, string(e))
	}
	return m
}

// TestDiskActions expects that no sequence of actions uses or exports a pool that another pool, another
// program or a lost device stands for.
func TestDiskActions(t *testing.T) {
	t.Parallel()
	actions := []DiskEvent{DiskImport, DiskScrub, DiskScrubbed, DiskExport}
	for _, from := range []DiskState{DiskAway, DiskWaiting, DiskForeign, DiskSuspended} {
		for _, e := range actions {
			next, _ := NextDisk(from, e)
			require.Equal(t, from, next, "%s, %s", from, e)
		}
	}
	for _, e := range actions {
		next, _ := NextDisk(DiskPresent, e)
		require.Equal(t, DiskPresent, next, "%s", e)
	}
	for _, s := range diskStates() { // what a run sees decides, whatever it remembers
		for _, e := range diskEvents()[:7] {
			next, err := NextDisk(s, e)
			require.NoError(t, err)
			require.Equal(t, e == SeenOwned || e == SeenImported, next.Usable(), "%s, %s", s, e)
		}
	}
}

func TestObserveDisk(t *testing.T) {
	t.Parallel()
	const mine, sibling, other = 1<<64 - 1, 2, 3
	d := Disk{Pool: "offsite", GUID: mine, Siblings: []uint64{mine, sibling}}
	imported := func(guid uint64, name, health string, owned bool) zfs.ImportedPool {
		return zfs.ImportedPool{GUID: guid, Name: name, Health: health, Owned: owned}
	}
	attached := func(guid uint64, name string) zfs.AttachedPool {
		return zfs.AttachedPool{GUID: guid, Name: name, State: zfs.PoolOnline}
	}
	for _, c := range []struct {
		name  string
		found zfs.FoundPools
		want  DiskEvent
		why   string
	}{
		{"nothing", zfs.FoundPools{}, SeenAbsent, ""},
		{"other pools", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(9, "tank", "ONLINE", false)}, Attached: []zfs.AttachedPool{attached(8, "usb")}}, SeenAbsent, ""},
		{"attached", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(mine, "offsite")}}, SeenAttached, ""},
		{"attached with its sibling", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(sibling, "offsite"), attached(mine, "offsite")}}, SeenAttached, ""},
		{"attached next to a foreign pool", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(other, "offsite"), attached(mine, "offsite")}}, SeenAttached, ""},
		{"owned", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(mine, "offsite", "ONLINE", true)}}, SeenOwned, ""},
		{"degraded", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(mine, "offsite", "DEGRADED", false)}}, SeenImported, ""},
		{"suspended", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(mine, "offsite", "SUSPENDED", true)}}, SeenSuspended, ""},
		{"sibling", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(sibling, "offsite", "SUSPENDED", true)}, Attached: []zfs.AttachedPool{attached(mine, "offsite")}}, SeenSibling, ""},
		{"imported foreign", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(other, "offsite", "ONLINE", true)}, Attached: []zfs.AttachedPool{attached(mine, "offsite")}},
			SeenForeign, `the imported pool "offsite" has GUID 3, which is not in disk.pools`},
		{"attached foreign", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(other, "offsite")}}, SeenForeign, `the attached pool "offsite" has GUID 3, which is not in disk.pools`},
		{"attached foreign next to a sibling", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(other, "offsite"), attached(sibling, "offsite")}}, SeenAbsent, ""},
		{"renamed", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(mine, "usb", "ONLINE", false)}}, SeenForeign,
			"the pool with GUID 18446744073709551615 is imported as \"usb\", but `to` names \"offsite\""},
		{"renamed elsewhere", zfs.FoundPools{Attached: []zfs.AttachedPool{attached(mine, "usb\x1b[31m")}}, SeenForeign,
			"the pool with GUID 18446744073709551615 is named \"usb\\x1b[31m\", but `to` names \"offsite\""},
		{"swapped names", zfs.FoundPools{Imported: []zfs.ImportedPool{imported(mine, "usb", "ONLINE", false), imported(sibling, "offsite", "ONLINE", false)}}, SeenForeign,
			"the pool with GUID 18446744073709551615 is imported as \"usb\", but `to` names \"offsite\""},
	} {
		event, why := d.Observe(&c.found)
		require.Equal(t, c.want, event, c.name)
		require.Equal(t, c.why, why, c.name)
	}
}
