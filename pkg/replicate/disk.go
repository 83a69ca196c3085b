package replicate

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// Disk describes the pools of a target that come and go. ByDisk makes one target of each pool.
type Disk struct {
	// Pools maps labels to GUIDs in decimal. All pools have the name in To.
	Pools map[string]string `toml:"pools"`
	// Import lets a run import an attached pool, and Export lets it export a pool that it imported.
	Import bool `toml:"import,omitempty"`
	Export bool `toml:"export,omitempty"`
	// Scrub is the maximum age of the last scrub; 0 = zxfer starts no scrub.
	Scrub calendar.Duration `toml:"scrub,omitempty"`
	// Late is the maximum age of a copy; 0 = copies on disks are never late.
	Late calendar.Duration `toml:"late,omitempty"`
	// Hold is how long the source holds the common snapshot of an absent disk. Afterwards a
	// bookmark replaces it; nil = 90 days.
	Hold *calendar.Grace `toml:"hold,omitempty"`
	// Directories with devices; empty = /dev/disk/by-id.
	Directories []string `toml:"directories,omitempty"`

	// Of is the name of the target in the job file, and Label the label of this pool. ByDisk sets
	// both.
	Of    string `toml:"-"`
	Label string `toml:"-"`
}

const (
	// defaultDiskHold is a quarter, the longest usual interval of a rotation.
	defaultDiskHold = 90 * day
)

// GUID returns the GUID of the disk's pool, or 0 before ByDisk.
func (d *Disk) GUID() uint64 {
	guid, _ := strconv.ParseUint(d.Pools[d.Label], 10, 64) // checked by diskFaults
	return guid
}

// DirectoriesOrDefault returns Directories or its default.
func (d *Disk) DirectoriesOrDefault() []string {
	if len(d.Directories) == 0 {
		return []string{"/dev/disk/by-id"}
	}
	return d.Directories
}

// HoldOrDefault returns Hold or its default; 0 = forever.
func (d *Disk) HoldOrDefault() time.Duration {
	if d.Hold == nil {
		return defaultDiskHold
	}
	return time.Duration(*d.Hold)
}

// Identity returns the identity of the disk of a target, whose Disk is not nil.
func (t *Target) Identity() decide.Disk {
	e, _ := endpoint.Parse(t.To) // checked by validation
	d := decide.Disk{Pool: zfs.PoolOf(e.Name), GUID: t.Disk.GUID()}
	for _, text := range t.Disk.Pools {
		if guid, err := strconv.ParseUint(text, 10, 64); err == nil {
			d.Siblings = append(d.Siblings, guid)
		}
	}
	slices.Sort(d.Siblings)
	return d
}

// DiskState is what runs know about a disk.
type DiskState struct {
	State decide.DiskState `json:"state"`
	Since time.Time        `json:"since,omitzero"` // start of the first run that saw this state
	Pool  string           `json:"pool"`
	GUID  uint64           `json:"guid,string"`
	// First is the start of the first run that looked for the disk. Seen is that of the last one
	// that used it.
	First time.Time `json:"first,omitzero"`
	Seen  time.Time `json:"seen,omitzero"`
	// Scrubbed is when the last known scrub of the pool completed.
	Scrubbed time.Time `json:"scrubbed,omitzero"`
	// Root is the GUID of the copy's root dataset, 0 before the first copy.
	Root uint64 `json:"root_guid,string,omitempty"`
	// Reason is why a run could not use or release the disk, "" if there is none.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
}

// Disk returns the state of a target's disk, and creates it if it is missing. If the GUID has changed,
// the disk is a new one.
func (s *State) Disk(t *Target, now time.Time) *DiskState {
	id := t.Identity()
	if s.Disks == nil {
		s.Disks = map[string]*DiskState{}
	}
	d := s.Disks[t.Name]
	if d == nil || d.GUID != id.GUID || d.Pool != id.Pool {
		d = &DiskState{State: decide.DiskAway, Since: now, Pool: id.Pool, GUID: id.GUID, First: now}
		s.Disks[t.Name] = d
	}
	return d
}

// Next applies an event at a time. It returns the refusal of an action.
func (d *DiskState) Next(e decide.DiskEvent, now time.Time) error {
	next, err := decide.NextDisk(d.State, e)
	if err != nil {
		return err
	}
	if next != d.State {
		d.State, d.Since = next, now
	}
	return nil
}

// ScrubDue reports whether a scrub of the disk's pool is due, or was interrupted.
func (d *DiskState) ScrubDue(every calendar.Duration, now time.Time) bool {
	return every > 0 && (d.State == decide.DiskScrubbing || d.Scrubbed.IsZero() || d.Scrubbed.After(now) || now.Sub(d.Scrubbed) >= time.Duration(every))
}

// LateAfter returns when a copy on a disk becomes late, or zero for never. success is the start of the
// last run that brought it up to date.
func (d *DiskState) LateAfter(late calendar.Duration, success, now time.Time) time.Time {
	if late == 0 {
		return time.Time{}
	}
	from := success
	if from.IsZero() || from.After(now) { // never, or the clock is or was wrong
		from = d.First
	}
	return from.Add(time.Duration(late))
}

// String returns the disk for people: pool and GUID.
func (d *DiskState) String() string { return fmt.Sprintf("pool %s, GUID %d", d.Pool, d.GUID) }
