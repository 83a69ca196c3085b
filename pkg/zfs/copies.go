package zfs

import (
	"fmt"
	"path"
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
		return fmt.Errorf("%s cannot be set aside as %q", a.Dataset, a.As)
	}
	return nil
}

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

// Drill clones are children of the pool's root dataset, outside of all copies and retention
// policies.
const (
	// DrillClonePrefix is the prefix of a drill clone's name.
	DrillClonePrefix = "zxfer-drill-"
	// AsideProperty is the user property that holds the job of a drill clone. zxfer never
	// destroys a clone without it.
	AsideProperty = "zxfer:drill"
)

// DrillCloneName returns the full name of a drill clone.
func DrillCloneName(pool, id string) string { return pool + "/" + DrillClonePrefix + id }

// IsDrillClone reports whether a dataset is a drill clone or a descendant of one.
func IsDrillClone(dataset string) bool {
	_, below, _ := strings.Cut(dataset, "/")
	return strings.HasPrefix(below, DrillClonePrefix)
}

// DrillClone is a request to create a drill clone.
type DrillClone struct {
	Snapshot string `json:"snapshot"`
	Job      string `json:"job"` // the job that needs it
	Writable bool   `json:"writable,omitempty"`
	// KeyFile holds the key of an encrypted snapshot whose key is not loaded. ZFS checks the
	// key without loading it.
	KeyFile string `json:"key_file,omitempty"`
	// Among limits the clones of these datasets and their descendants to MaxDrillClones. If it
	// is empty, there is no limit.
	Among []string `json:"among,omitempty"`
}

// MaxDrillClones is the largest number of drill clones of the datasets that one key may drill.
// A drill needs one at a time. The next drill destroys the clone of an interrupted one.
const MaxDrillClones = 16

// DrillClones selects the drill clones of a job, by the datasets whose snapshots were cloned.
type DrillClones struct {
	Job      string   `json:"job"`
	Datasets []string `json:"datasets"`
}

// DrillCommand is a command to run in a drill clone.
type DrillCommand struct {
	Clone string   `json:"clone"`
	Argv  []string `json:"argv"` // run without a shell
	// Environment holds "NAME=value" pairs. Each name starts with ZXFER_DRILL_.
	Environment []string      `json:"environment,omitempty"`
	Timeout     time.Duration `json:"timeout"`
	Writable    bool          `json:"writable,omitempty"`
	// KeyFile holds the key to load while the command runs, "" for none.
	KeyFile string `json:"key_file,omitempty"`
}

// Check returns an error if the command is invalid.
func (a DrillCommand) Check() error {
	switch {
	case len(a.Argv) == 0 || !path.IsAbs(a.Argv[0]):
		return fmt.Errorf("a command begins with an absolute path, and %q does not", a.Argv)
	case a.Timeout <= 0:
		return fmt.Errorf("a command has a time of %s to end", a.Timeout)
	case a.KeyFile != "" && !path.IsAbs(a.KeyFile):
		return fmt.Errorf("the key file %q is no absolute path", a.KeyFile)
	}
	for _, e := range a.Environment {
		if !strings.HasPrefix(e, "ZXFER_DRILL_") || !strings.Contains(e, "=") {
			return fmt.Errorf("%q is no variable for a command in a drill", e)
		}
	}
	_, err := ParseDataset(a.Clone)
	return err
}

// MaxDrillOutput is the number of bytes of a command's output that are kept.
const MaxDrillOutput = 4 << 10

// DrillResult is the outcome of a DrillCommand.
type DrillResult struct {
	Failure string `json:"failure,omitempty"` // "" = exit code 0
	Output  string `json:"output,omitempty"`  // last MaxDrillOutput bytes
}
