package decide

import (
	"fmt"
	"slices"
	"strconv"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
)

// DiskState is the state of a target's disk: of a pool that comes and goes.
type DiskState string

// The states of a disk.
const (
	DiskAway      DiskState = "away"      // no device has the pool
	DiskAttached  DiskState = "attached"  // its devices are present, and it is not imported
	DiskImported  DiskState = "imported"  // imported by zxfer
	DiskPresent   DiskState = "present"   // imported by someone else, who also exports it
	DiskScrubbing DiskState = "scrubbing" // imported by zxfer; a scrub is due or runs
	DiskRemovable DiskState = "removable" // exported by zxfer; the disk may be removed
	DiskWaiting   DiskState = "waiting"   // another disk of the target is imported under its name
	DiskForeign   DiskState = "foreign"   // a pool with another GUID has its name
	DiskSuspended DiskState = "suspended" // imported, but ZFS lost its devices
)

// DiskEvent changes the state of a disk.
type DiskEvent string

// Observations describe the disk at the start of a run, regardless of its state before.
const (
	SeenAbsent    DiskEvent = "absent"
	SeenAttached  DiskEvent = "attached"
	SeenOwned     DiskEvent = "owned" // imported by zxfer
	SeenImported  DiskEvent = "imported by others"
	SeenSibling   DiskEvent = "sibling imported"
	SeenForeign   DiskEvent = "foreign pool"
	SeenSuspended DiskEvent = "suspended"
)

// Actions are steps of a run, in their order. They are events after they succeeded, except for a
// scrub, which is one when it starts.
const (
	DiskImport   DiskEvent = "import"
	DiskScrub    DiskEvent = "scrub"
	DiskScrubbed DiskEvent = "scrubbed"
	DiskExport   DiskEvent = "export"
)

// Usable reports whether a run may use the pool.
func (s DiskState) Usable() bool {
	return slices.Contains([]DiskState{DiskImported, DiskPresent, DiskScrubbing}, s)
}

// NextDisk returns the state of a disk after an event. It refuses an action that the state does not
// permit.
func NextDisk(s DiskState, e DiskEvent) (DiskState, error) {
	switch e {
	case SeenAbsent:
		return DiskAway, nil
	case SeenAttached:
		return DiskAttached, nil
	case SeenOwned:
		if s == DiskScrubbing { // the run was interrupted; the scrub continues
			return s, nil
		}
		return DiskImported, nil
	case SeenImported:
		return DiskPresent, nil
	case SeenSibling:
		return DiskWaiting, nil
	case SeenForeign:
		return DiskForeign, nil
	case SeenSuspended:
		return DiskSuspended, nil
	}
	return s.act(e)
}

// act returns the state after an action.
func (s DiskState) act(e DiskEvent) (DiskState, error) {
	switch {
	case s == DiskForeign:
		return s, fault.Refusef("zpool get guid; add the GUID to disk.pools if the disk belongs to the target", "another pool has the name of this disk's pool")
	case s == DiskSuspended:
		return s, fault.Refusef("attach the disk, then: zpool clear POOL", "the pool is suspended: the disk is gone")
	case e == DiskImport && (s == DiskAttached || s == DiskRemovable):
		return DiskImported, nil
	case e == DiskImport && s.Usable():
		return s, nil
	case e == DiskImport && s == DiskWaiting:
		return s, fault.Refusef("export the other disk, then run the job again", "another disk of this target is imported")
	case e == DiskImport:
		return s, fault.Refusef("attach the disk", "the disk is away")
	case e == DiskScrub && s == DiskImported:
		return DiskScrubbing, nil
	case e == DiskScrub && !s.Usable():
		return s, fault.Refusef("import the pool first", "the pool is not imported")
	case e == DiskScrubbed && s == DiskScrubbing:
		return DiskImported, nil
	case e == DiskExport && s == DiskPresent:
		return s, fault.Refusef("zpool export POOL", "zxfer did not import the pool, and does not export it")
	case e == DiskExport && s.Usable():
		return DiskRemovable, nil
	}
	return s, nil
}

// Disk identifies the pool of a disk.
type Disk struct {
	Pool string // its name
	GUID uint64
	// Siblings are the GUIDs of all disks of the target, which share the name.
	Siblings []uint64
}

// Observe returns what the pools of a host mean for the disk, with a reason if another pool has its
// name or if the pool has another name.
func (d *Disk) Observe(f *zfs.FoundPools) (e DiskEvent, why string) {
	known := func(guid uint64) bool { return guid == d.GUID || slices.Contains(d.Siblings, guid) }
	for _, p := range f.Imported {
		switch {
		case p.GUID == d.GUID && p.Name != d.Pool:
			return SeenForeign, fmt.Sprintf("the pool with GUID %d is imported as %q, but `to` names %q", d.GUID, p.Name, d.Pool)
		case p.GUID == d.GUID && p.Health == zfs.PoolSuspended:
			return SeenSuspended, ""
		case p.GUID == d.GUID && p.Owned && p.ReadOnly: // a run was killed while it inspected the disk
			return SeenAttached, ""
		case p.GUID == d.GUID && p.Owned:
			return SeenOwned, ""
		case p.GUID == d.GUID:
			return SeenImported, ""
		}
	}
	for _, p := range f.Imported {
		if p.Name == d.Pool && !known(p.GUID) {
			return SeenForeign, d.foreign(p.GUID, "imported")
		}
	}
	for _, p := range f.Imported {
		if p.Name == d.Pool {
			return SeenSibling, ""
		}
	}
	var other uint64
	ours := false
	for _, p := range f.Attached {
		switch {
		case p.GUID == d.GUID && p.Name != d.Pool:
			return SeenForeign, fmt.Sprintf("the pool with GUID %d is named %q, but `to` names %q", d.GUID, p.Name, d.Pool)
		case p.GUID == d.GUID:
			return SeenAttached, ""
		case known(p.GUID):
			ours = true
		case p.Name == d.Pool:
			other = p.GUID
		}
	}
	if other != 0 && !ours { // otherwise the attached disk of the target is meant
		return SeenForeign, d.foreign(other, "attached")
	}
	return SeenAbsent, ""
}

// foreign returns the reason why another pool with the name is refused.
func (d *Disk) foreign(guid uint64, how string) string {
	return "the " + how + " pool " + strconv.Quote(d.Pool) + " has GUID " + strconv.FormatUint(guid, 10) + ", which is not in disk.pools"
}
