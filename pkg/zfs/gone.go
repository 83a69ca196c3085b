package zfs

import (
	"fmt"
	"strings"
)

// OrphanProperty marks a copy that is being removed, as its original is gone: its value is the
// tag of the job's holds.
const OrphanProperty = "zxfer:gone"

// Orphan is a copy that is to be destroyed, with all its snapshots and nothing else.
type Orphan struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	// Tag is that of the holds of the job that brought it there: one of its snapshots is
	// held by it, and none by any other.
	Tag string `json:"tag"`
	// Snapshots are all that it may have.
	Snapshots []SnapshotID `json:"snapshots,omitempty"`
}

// Check refuses what is none.
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

// Holds are what is known of a snapshot beside its name.
type Holds struct{ Tags, Clones []string }

// RefusalReason tells why a copy, as it was listed with what is below it, is to stay; "" where
// nothing speaks for it. of has the holds and clones of its snapshots, by full name.
func (g Orphan) RefusalReason(l *Listing, of map[string]Holds) string {
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
