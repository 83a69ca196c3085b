package zfs

import (
	"fmt"
	"strings"
)

// TagPrefix is the prefix of the hold tags and bookmark names of zxfer's jobs.
const TagPrefix = "zxfer:"

// IsJobTag reports whether a job of zxfer placed the hold: "zxfer:JOB:TARGET".
func IsJobTag(tag string) bool {
	rest, ours := strings.CutPrefix(tag, TagPrefix)
	return ours && strings.Contains(rest, ":")
}

// Rollback rolls a dataset back to one of its snapshots.
type Rollback struct {
	Dataset string     `json:"dataset"`
	To      SnapshotID `json:"to"`
	// Loses lists the newer snapshots and bookmarks that are destroyed. If the dataset has any
	// other newer version, nothing is changed.
	Loses []Version `json:"loses,omitempty"`
}

// Snapshot returns the full name of the snapshot to roll back to.
func (r Rollback) Snapshot() string { return r.Dataset + "@" + r.To.Name }

// Check returns an error if a name or GUID is invalid.
func (r Rollback) Check() error {
	if _, err := ParseDataset(r.Dataset); err != nil {
		return err
	}
	for _, v := range append([]Version{{Kind: Snapshot, Name: r.To.Name, GUID: r.To.GUID}}, r.Loses...) {
		_, parsed, err := ParseVersion(v.In(r.Dataset))
		if err != nil {
			return err
		}
		if parsed.Kind != v.Kind || parsed.Name != v.Name || v.GUID == 0 {
			return fmt.Errorf("%q is no snapshot or bookmark of %s", v.Short(), r.Dataset)
		}
	}
	return nil
}

// Newer returns the full names of the versions to destroy first. If the dataset must not be
// rolled back, why is the reason. d must have all its versions.
func (r Rollback) Newer(d *Dataset) (names []string, why string) {
	to, ok := d.SnapshotOf(r.To.GUID)
	if !ok || to.Name != r.To.Name {
		return nil, fmt.Sprintf("it no longer has @%s", r.To.Name)
	}
	type id struct {
		kind VersionKind
		name string
		guid uint64
	}
	known := make(map[id]bool, len(r.Loses))
	for _, v := range r.Loses {
		known[id{v.Kind, v.Name, v.GUID}] = true
	}
	for _, v := range d.Versions {
		if v.CreateTXG <= to.CreateTXG {
			continue
		}
		if !known[id{v.Kind, v.Name, v.GUID}] {
			return nil, fmt.Sprintf("%s was made after this was planned, and would be destroyed", v.In(r.Dataset))
		}
		names = append(names, v.In(r.Dataset))
	}
	return names, ""
}
