package decision

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/zfs"
)

// CopyRename is a copy whose source dataset was renamed.
type CopyRename struct {
	Source string `json:"source"` // the present name of its source dataset
	From   string `json:"from"`   // of the copy
	To     string `json:"to"`
	// Refused is why it keeps its former name, "" = it is renamed. Hint is the remedy.
	Refused string `json:"refused,omitempty"`
	Hint    string `json:"hint,omitempty"`
	// was is the name under which a killed run left the copy, "" = From.
	was   string
	event decide.RenameEvent
}

// Renames lists what becomes of the outdated names on a target.
type Renames struct {
	Copies []*CopyRename
	// Steps are the renames, in order.
	Steps []RenameStep
}

// RenameStep is one rename on a target.
type RenameStep struct {
	zfs.RenamedCopy
	CreateParents bool // first
}

// renamingSuffix marks a copy whose new name is not yet free, because copies exchange their names.
const renamingSuffix = ".zxfer-renaming"

// OutdatedNames reports whether a target has copies with outdated names. It clears the mark of copies
// whose source was renamed back.
func (v *Survey) OutdatedNames(t *replicate.Target) bool { return len(v.outdated(t)) > 0 }

// outdated returns the source datasets whose copies have outdated names, parents first.
func (v *Survey) outdated(t *replicate.Target) (all []*zfs.Dataset) {
	for _, d := range v.DatasetsFor(t.Name) {
		known := v.State.Datasets[d.Name]
		if known == nil || known.GUID != d.GUID || known.Targets[t.Name] == nil || !known.Targets[t.Name].Renamed {
			continue
		}
		a := known.Targets[t.Name]
		if a.Target == t.CopyOf(v.Root, d.Name) {
			a.Renamed = false // decide.SourceRenamedBack
			continue
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *zfs.Dataset) int {
		return strings.Compare(strings.ReplaceAll(a.Name, "/", "\x01"), strings.ReplaceAll(b.Name, "/", "\x01"))
	})
	return all
}

// RenameList returns the dataset to list for PlanRenames: the copy of the source's root, or RenameRoot
// if that copy is to be renamed.
func (v *Survey) RenameList(t *replicate.Target) string {
	if outdated := v.outdated(t); len(outdated) > 0 && outdated[0].Name == v.Root {
		return t.RenameRoot()
	}
	return t.CopyOf(v.Root, v.Root)
}

// PlanRenames returns what becomes of the outdated names on a target. l lists RenameList with all
// descendants and versions. It changes neither.
func (v *Survey) PlanRenames(t *replicate.Target, l *zfs.Listing) *Renames {
	r := &renamePlanner{survey: v, target: t, names: map[string]*zfs.Dataset{}, now: map[*zfs.Dataset]string{}, Renames: &Renames{}}
	for _, d := range l.Datasets {
		r.names[d.Name], r.now[d] = d, d.Name
	}
	wanted := map[string]int{}
	for _, d := range v.outdated(t) {
		a := v.State.Datasets[d.Name].Targets[t.Name]
		c := &outdatedCopy{CopyRename: &CopyRename{Source: d.Name, From: a.Target, To: t.CopyOf(v.Root, d.Name)}, source: d, base: a.BaseGUID}
		r.find(c)
		wanted[a.Target]++
		r.Copies, r.pending = append(r.Copies, c.CopyRename), append(r.pending, c)
	}
	for _, c := range r.pending {
		r.findBelow(c)
		c.claimed = wanted[c.From] > 1 || r.claimed(c)
	}
	r.run()
	return r.Renames
}

// find finds the copy under its recorded name or, after a killed run, under its new or temporary name.
func (r *renamePlanner) find(c *outdatedCopy) {
	switch {
	case r.isAt(c, c.From):
	case r.isAt(c, c.To+renamingSuffix):
		c.was, c.parked = c.To+renamingSuffix, true
	case r.isAt(c, c.To):
		c.was = c.To // decide.CopyAtNewName
		return
	}
	c.copied = r.names[cmp.Or(c.was, c.From)]
}

// findBelow finds a copy below a parent that a killed run renamed.
func (r *renamePlanner) findBelow(c *outdatedCopy) {
	if c.was != "" || r.isAt(c, c.From) {
		return
	}
	for _, p := range r.pending {
		if rest, ok := renamedPart(c.From, p.From); ok && p != c && p.was != "" && r.isAt(c, p.was+rest) {
			c.was, c.copied = p.was+rest, r.names[p.was+rest]
			return
		}
	}
}

// isAt reports whether the dataset with a name has the copy's common snapshot.
func (r *renamePlanner) isAt(c *outdatedCopy, name string) bool {
	d := r.names[name]
	if d == nil {
		return false
	}
	_, ok := d.SnapshotOf(c.base)
	return ok
}

// outdatedCopy is a copy to rename, while it is planned.
type outdatedCopy struct {
	*CopyRename
	source  *zfs.Dataset
	base    uint64
	copied  *zfs.Dataset // nil if it does not exist
	claimed bool
	parked  bool // has the temporary name
}

// renamePlanner simulates the renames.
type renamePlanner struct {
	*Renames
	survey  *Survey
	target  *replicate.Target
	names   map[string]*zfs.Dataset // by present name
	now     map[*zfs.Dataset]string // the present names
	pending []*outdatedCopy
}

// claimed reports whether another source dataset, to whose name the copy's name belongs, may be the
// original of the copy.
func (r *renamePlanner) claimed(c *outdatedCopy) bool {
	for _, d := range r.survey.All {
		if d.Name != c.source.Name && r.target.CopyOf(r.survey.Root, d.Name) == c.From && txgOf(d, c.base) != 0 {
			return true
		}
	}
	return false
}

// run plans renames until no name changes any more. If copies wait for each other's names, it parks
// one under a temporary name.
func (r *renamePlanner) run() {
	for len(r.pending) > 0 {
		before := len(r.pending)
		for i := 0; i < len(r.pending); {
			if r.settle(r.pending[i]) {
				r.pending = slices.Delete(r.pending, i, i+1)
			} else {
				i++
			}
		}
		if len(r.pending) < before {
			continue
		}
		i := slices.IndexFunc(r.pending, func(c *outdatedCopy) bool { return !c.parked && c.event == decide.RenameNameTaken && !r.below(c) })
		if i < 0 {
			for _, c := range r.pending { // names that no order of renames resolves
				c.refuse(decide.RenameUnproved, r.facts(c))
			}
			return
		}
		c := r.pending[i]
		c.parked = true
		r.rename(c, c.To+renamingSuffix, false)
	}
}

// settle decides about a copy. It returns false if the copy waits for another one.
func (r *renamePlanner) settle(c *outdatedCopy) bool {
	if c.copied != nil && r.now[c.copied] == c.To && c.copied.Name != c.To {
		return true // it moved together with a parent
	}
	f := r.facts(c)
	c.event = f.Event()
	if r.below(c) || c.event == decide.RenameNameTaken && r.leaves(r.names[c.To]) {
		return false
	}
	if !c.refuse(c.event, f) && c.event == decide.RenameProved {
		parent := zfs.ParentOf(c.To)
		r.rename(c, c.To, r.names[parent] == nil && r.within(parent))
	}
	return true
}

// refuse records the refusal of an event, if it is one.
func (c *outdatedCopy) refuse(e decide.RenameEvent, f *decide.RenameFacts) bool {
	c.event = e
	_, err := decide.NextRename(decide.CopyOutdated, e, f)
	if err != nil {
		c.Refused, c.Hint = err.Error(), fault.HintOf(err)
	}
	return err != nil
}

// below reports whether another pending copy moves a parent of this one, or of its new name.
func (r *renamePlanner) below(c *outdatedCopy) bool {
	return slices.ContainsFunc(r.pending, func(p *outdatedCopy) bool {
		if p == c || p.copied == nil {
			return false
		}
		above := func(name string) bool {
			return strings.HasPrefix(name, p.To+"/") || strings.HasPrefix(name, r.now[p.copied]+"/")
		}
		return above(c.To) || c.copied != nil && above(r.now[c.copied])
	})
}

// leaves reports whether a dataset is a copy that is still to get another name.
func (r *renamePlanner) leaves(d *zfs.Dataset) bool {
	return slices.ContainsFunc(r.pending, func(c *outdatedCopy) bool { return c.copied == d })
}

func (r *renamePlanner) within(name string) bool {
	root := r.target.RenameRoot()
	return name != root && strings.HasPrefix(name, root+"/")
}

// facts returns the facts about a copy in the present state of the plan.
func (r *renamePlanner) facts(c *outdatedCopy) *decide.RenameFacts {
	f := &decide.RenameFacts{Copy: c.From, To: c.To, Follow: r.target.FollowsRenames(), SourceHasBase: txgOf(c.source, c.base) != 0, Claimed: c.claimed}
	if at := r.names[c.To]; at != nil && at != c.copied {
		f.NameExists = true
		_, f.NameHasBase = at.SnapshotOf(c.base)
	}
	if c.copied == nil {
		return f
	}
	f.CopyExists = true
	_, f.CopyHasBase = c.copied.SnapshotOf(c.base)
	from, parent := r.now[c.copied], zfs.ParentOf(c.To)
	if (zfs.RenamedCopy{Dataset: from, GUID: c.copied.GUID, As: c.To, Base: c.base}).Check() != nil {
		f.Claimed = true // in another pool, or below itself
	}
	f.ParentMissing = r.within(parent) && r.names[parent] == nil && r.survey.sends(r.target, parent)
	f.OtherData = r.otherData(from)
	if p := r.names[parent]; p != nil {
		f.OtherKey = zfs.KeyMove(c.copied, p.Get("encryptionroot"))
	}
	return f
}

// sends reports whether a target's dataset is the copy of a source dataset that the run may send.
func (v *Survey) sends(t *replicate.Target, copied string) bool {
	return slices.ContainsFunc(v.DatasetsFor(t.Name), func(d *zfs.Dataset) bool { return t.CopyOf(v.Root, d.Name) == copied })
}

// otherData returns a descendant of a copy that does not belong to the job, "" = none.
func (r *renamePlanner) otherData(above string) string {
	owned := map[string]bool{}
	for _, known := range r.survey.State.Datasets {
		if a := known.Targets[r.target.Name]; a != nil {
			owned[a.Target] = true
		}
	}
	for _, g := range r.survey.State.OrphansAt(r.target.Name) {
		owned[g.Dataset] = true
	}
	left := r.left()
	for _, name := range slices.Collect(maps.Keys(owned)) { // where a killed run left them
		owned[left(name)] = true
	}
	for _, name := range slices.Sorted(maps.Keys(r.names)) {
		if strings.HasPrefix(name, above+"/") && !owned[r.names[name].Name] && !zfs.IsDiverged(name) {
			return name
		}
	}
	return ""
}

// rename adds a step and simulates it.
func (r *renamePlanner) rename(c *outdatedCopy, to string, createParents bool) {
	from := r.now[c.copied]
	r.Steps = append(r.Steps, RenameStep{zfs.RenamedCopy{Dataset: from, GUID: c.copied.GUID, As: to, Base: c.base}, createParents})
	for _, name := range slices.Collect(maps.Keys(r.names)) {
		if name == from || strings.HasPrefix(name, from+"/") {
			d, now := r.names[name], to+strings.TrimPrefix(name, from)
			delete(r.names, name)
			r.names[now], r.now[d] = d, now
		}
	}
}

// Record records the outcome of the first steps on a target: the copies, their descendants,
// diverged copies and orphans have new names. Names that a killed run left are recorded, too.
func (r *Renames) Record(s *replicate.State, target string, done int) {
	s.RenameCopies(target, r.left())
	for _, step := range r.Steps[:done] {
		s.RenameCopies(target, func(name string) string {
			if rest, ok := renamedPart(name, step.Dataset); ok {
				return step.As + rest
			}
			return name
		})
	}
	for _, c := range r.Copies {
		if a := s.Copy(c.Source, target); a.Target == c.To || c.event == decide.CopyMissing {
			a.Renamed = false
		}
	}
}

// left returns a function that maps a recorded name to the name that a killed run left.
func (r *Renames) left() func(name string) string {
	moved := []*CopyRename{}
	for _, c := range r.Copies {
		if c.was != "" && c.was != c.From {
			moved = append(moved, c)
		}
	}
	// The longest name counts: a copy may have been moved after its parent.
	slices.SortFunc(moved, func(a, b *CopyRename) int { return len(b.From) - len(a.From) })
	return func(name string) string {
		for _, c := range moved {
			if rest, ok := renamedPart(name, c.From); ok {
				return c.was + rest
			}
		}
		return name
	}
}

// renamedPart returns the rest of the name of a dataset, a descendant or one of their snapshots after the
// name of the dataset.
func renamedPart(name, of string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(name, of)
	return rest, ok && (rest == "" || strings.ContainsAny(rest[:1], "/@"))
}
