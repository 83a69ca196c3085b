package zfs

import (
	"fmt"
	"strings"
	"time"
)

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
			return fmt.Errorf("%q is not a snapshot or bookmark of %s", v.Short(), r.Dataset)
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
			return nil, fmt.Sprintf("%s was created after the plan was made, and would be destroyed", v.In(r.Dataset))
		}
		names = append(names, v.In(r.Dataset))
	}
	return names, ""
}

// A diverged copy is renamed to its name with a suffix that holds the UTC time.
const (
	divergedMark   = ".zxfer-"
	divergedLayout = divergedMark + "2006-01-02T15-04-05Z"
)

// DivergedSuffix returns the suffix of a copy that is renamed at a time.
func DivergedSuffix(at time.Time) string { return at.UTC().Format(divergedLayout) }

// NameBeforeRename returns the name of a dataset before it or an ancestor was renamed as a
// diverged copy. ok is false if none was.
func NameBeforeRename(dataset string) (before string, ok bool) {
	parts := strings.Split(dataset, "/")
	for i, p := range parts {
		at := strings.LastIndex(p, divergedMark)
		if at <= 0 {
			continue
		}
		if _, err := time.Parse(divergedLayout, p[at:]); err == nil {
			parts[i], ok = p[:at], true
		}
	}
	return strings.Join(parts, "/"), ok
}

// IsDiverged reports whether a dataset is a diverged copy or a descendant of one.
func IsDiverged(dataset string) bool {
	_, ok := NameBeforeRename(dataset)
	return ok
}

// DivergedCopy is a copy to rename together with its descendants.
type DivergedCopy struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	As      string `json:"as"` // the new name
}

// Check returns an error if As is not Dataset with a valid suffix.
func (a DivergedCopy) Check() error {
	if _, err := ParseDataset(a.Dataset); err != nil {
		return err
	}
	if _, err := ParseDataset(a.As); err != nil {
		return err
	}
	before, ok := NameBeforeRename(a.As)
	beside := ParentOf(a.As) == ParentOf(a.Dataset) && ParentOf(a.Dataset) != ""
	if !ok || !beside || before != a.Dataset || IsDiverged(a.Dataset) {
		return fmt.Errorf("cannot rename %s to %q", a.Dataset, a.As)
	}
	return nil
}

// RefusalReason returns why the copy must not be renamed, or "" if it may be. l is the answer to
// RolesBelow.
func (a DivergedCopy) RefusalReason(l *Listing) string { return sourceWithin(l) }

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
		return fmt.Errorf("%s is not a copy that may be destroyed with its original", g.Dataset)
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
		return "it is another dataset than before"
	}
	for _, other := range l.Datasets {
		if strings.HasPrefix(other.Name, g.Dataset+"/") {
			return other.Name + " is its descendant"
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
	if begun := marked && len(d.Snapshots()) == 0; !begun && d.Modified() {
		return "it was modified since its most recent snapshot"
	}
	for _, s := range d.Snapshots() {
		held := of[s.In(d.Name)]
		if !ours[SnapshotID{Name: s.Name, GUID: s.GUID}] {
			return "it has @" + s.Name + ", which the job did not send"
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
		return "the job holds none of its snapshots (" + g.Tag + ")"
	}
	return ""
}
