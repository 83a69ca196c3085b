package zfs

import (
	"fmt"
	"strings"
)

// OrphanProperty marks an orphan that is being destroyed. Its value is the tag of the job's
// holds.
const OrphanProperty = "zxfer:gone"

// Orphan is a copy to destroy with its snapshots, because its source dataset was deleted.
type Orphan struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	// Tag is the hold tag of the job that created the copy. The tag must hold at least one
	// snapshot, and no other tag may hold any.
	Tag string `json:"tag"`
	// Snapshots are the only snapshots that the copy may have.
	Snapshots []SnapshotID `json:"snapshots,omitempty"`
}

// Check returns an error if zxfer may not destroy such a dataset.
func (g Orphan) Check() error {
	if _, err := ParseDataset(g.Dataset); err != nil {
		return err
	}
	if ParentOf(g.Dataset) == "" || !strings.HasPrefix(g.Tag, "zxfer:") || IsDiverged(g.Dataset) {
		return fmt.Errorf("%s is no copy that goes with its original", g.Dataset)
	}
	if err := CheckTag(g.Tag); err != nil {
		return err
	}
	for _, s := range g.Snapshots {
		if err := CheckComponent(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// SnapshotRefs lists the hold tags and clones of a snapshot.
type SnapshotRefs struct{ Tags, Clones []string }

// RefusalReason returns why the copy must be kept, or "" if it may be destroyed. l lists the
// copy and its descendants. of has the hold tags and clones of its snapshots by full name.
func (g Orphan) RefusalReason(l *Listing, of map[string]SnapshotRefs) string {
	d := l.Find(g.Dataset)
	if d.GUID != g.GUID {
		return "it is another dataset than it was"
	}
	for _, other := range l.Datasets {
		if strings.HasPrefix(other.Name, g.Dataset+"/") {
			return other.Name + " is below it"
		}
	}
	if d.Get("mounted") == "yes" {
		return "it is mounted"
	}
	ours := map[SnapshotID]bool{}
	for _, s := range g.Snapshots {
		ours[s] = true
	}
	mark := d.Properties[OrphanProperty]
	marked := mark.Local() && mark.Value == g.Tag
	if begun := marked && len(d.Snapshots()) == 0; !begun && d.WrittenTo() {
		return "it was written to since its newest snapshot"
	}
	for _, s := range d.Snapshots() {
		held := of[s.In(d.Name)]
		if !ours[SnapshotID{Name: s.Name, GUID: s.GUID}] {
			return "it has @" + s.Name + ", which the job did not bring there"
		}
		for _, tag := range held.Tags {
			if tag != g.Tag {
				return fmt.Sprintf("@%s is held (%s)", s.Name, tag)
			}
			marked = true
		}
		if len(held.Clones) > 0 {
			return fmt.Sprintf("@%s has the clone %s", s.Name, held.Clones[0])
		}
	}
	if !marked {
		return "no snapshot of it is held by the job (" + g.Tag + ")"
	}
	return ""
}
