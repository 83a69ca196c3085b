package decision

import (
	"maps"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// Survey is the knowledge of a run before it sends: the job, the state of earlier runs, and the
// listing of the source.
type Survey struct {
	SourceAt remedy.Host // the source for commands of hints
	Job      *replicate.Job
	Scope    *replicate.Scope
	State    *replicate.State
	// Started names the run's snapshots.
	Started time.Time
	// Root is the source's root dataset. All are the datasets found there, Source the selected
	// ones except Unchanged. For Unchanged datasets, by name, an earlier run found nothing to do.
	Root      string
	All       []*zfs.Dataset
	Source    *zfs.Listing
	Unchanged map[string]bool
	// Excluded holds, by target name, the source datasets that the target does not take.
	Excluded map[string]map[string]bool
	// Promoted reports that a fail over made the source the source of all copies. No upstream job
	// confirms the snapshots of a relay then.
	Promoted bool
	// Unconfirmed counts, by dataset of a relay, the snapshots that Confirm removed from Source. Waiting
	// are the datasets that it removed.
	Unconfirmed map[string]int
	Waiting     map[string]bool
	// Renames holds what becomes of outdated names of copies, by target name. Only targets with
	// on_rename = "follow" have an entry.
	Renames map[string]*Renames
}

// Choose sets Source to the datasets in All that the job takes, and fills Excluded.
func (v *Survey) Choose() {
	v.Source.Datasets = slices.DeleteFunc(slices.Clone(v.All), func(d *zfs.Dataset) bool { return !v.Job.Selects(v.Root, d) })
	v.Excluded = map[string]map[string]bool{}
	for i := range v.Job.Targets {
		t := &v.Job.Targets[i]
		v.Excluded[t.Name] = map[string]bool{}
		for _, d := range v.Source.Datasets {
			if !t.Selects(v.Root, d) {
				v.Excluded[t.Name][d.Name] = true
			}
		}
	}
}

// DatasetsFor returns the datasets of Source that a target takes.
func (v *Survey) DatasetsFor(target string) []*zfs.Dataset {
	without := v.Excluded[target]
	if len(without) == 0 {
		return v.Source.Datasets
	}
	return slices.DeleteFunc(slices.Clone(v.Source.Datasets), func(d *zfs.Dataset) bool { return without[d.Name] })
}

// UnchangedAt returns the names in Unchanged that a target takes.
func (v *Survey) UnchangedAt(target string) (names []string) {
	for name := range v.Unchanged {
		if !v.Excluded[target][name] {
			names = append(names, name)
		}
	}
	return names
}

// CopiesToList returns the copies of all datasets that the run may send to a target. If one is
// new, it returns nil: then the complete target must be listed, because the dataset may have a
// copy under another name.
func (v *Survey) CopiesToList(t *replicate.Target) []string {
	var out []string
	for _, d := range v.DatasetsFor(t.Name) {
		if v.Scope.Count(d) == 0 {
			continue
		}
		if known := v.State.Datasets[d.Name]; known == nil || known.Targets[t.Name] == nil || known.Targets[t.Name].BaseGUID == 0 {
			return nil
		}
		out = append(out, t.CopyOf(v.Root, d.Name))
	}
	if len(out) == 0 { // nothing to send
		out = append(out, t.CopyOf(v.Root, v.Root))
	}
	return out
}

// DueSnapshots are the snapshots that a run takes.
type DueSnapshots struct {
	Names  []string             // full names
	Frozen []freeze.Application // applications to freeze for them
	// Unmatched are applications that cannot be frozen, because a pattern matches no dataset.
	Unmatched []UnmatchedFreeze
}

// DueSnapshots returns the snapshots to take.
func (v *Survey) DueSnapshots() *DueSnapshots {
	due, freezes := &DueSnapshots{}, freezeSet{v.Job.Freeze, v.Root}
	all, changed := slices.Collect(maps.Keys(v.Unchanged)), map[string]bool{}
	for _, d := range v.Source.Datasets {
		latest, any := d.Latest()
		_, own := v.Scope.Own(latest.Name)
		all, changed[d.Name] = append(all, d.Name), !v.Job.Snapshots.SkipUnchanged || !any || !own || d.Get("written") != "0"
	}
	if naming := v.Scope.Naming(); naming != nil {
		freezes.addPartners(changed)
		name := naming.At(v.Started)
		for _, d := range v.Source.Datasets {
			taken := slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == name })
			if !d.Inconsistent() && changed[d.Name] && !taken {
				due.Names = append(due.Names, d.Name+"@"+name)
			}
		}
	}
	due.Frozen, due.Unmatched = freezes.of(due.Names, all)
	return due
}

// EndLocal records the result of a run without targets. missed holds the errors of snapshots, by
// dataset, failed is the error of pruning.
func (v *Survey) EndLocal(missed map[string]error, failed error) {
	for name := range v.Unchanged {
		v.State.Local(name).Record(v.Started, nil)
	}
	for _, d := range v.Source.Datasets {
		v.State.Dataset(d.Name).Identify(d)
		a := v.State.Local(d.Name)
		a.Snapshot = ""
		for _, s := range d.Snapshots() {
			if v.Scope.Has(s.Name) {
				a.Snapshot = s.Name
			}
		}
		err := missed[d.Name]
		switch {
		case err != nil:
		case v.Scope.Naming() == nil: // the run only prunes
			err = failed
		case d.Inconsistent():
			err = fault.Refusef("resume the receive, or abort it: "+v.SourceAt.Command("zfs", "receive", "-A", d.Name),
				"a receive into it is running, or was interrupted: no snapshot can be taken of it")
		}
		a.Record(v.Started, err)
	}
}

// Forget drops state that is outside the job now, so that status does not report it as late. Its
// holds become stale (see holds --gc).
func (v *Survey) Forget() {
	concerned := map[string]bool{}
	maps.Copy(concerned, v.Unchanged)
	maps.Copy(concerned, v.Waiting)
	for _, d := range v.Source.Datasets {
		concerned[d.Name] = true
	}
	for _, d := range v.Source.Datasets {
		if known := v.State.Datasets[d.Name]; known != nil {
			newest := "" // of the job's own
			for _, s := range d.Snapshots() {
				if _, own := v.Scope.Own(s.Name); own {
					newest = s.Name
				}
			}
			maps.DeleteFunc(known.Consistent, func(snapshot string, _ bool) bool {
				for _, a := range known.Targets {
					if a.Base == snapshot {
						return false
					}
				}
				return snapshot != newest
			})
		}
	}
	maps.DeleteFunc(v.State.Datasets, func(name string, _ *replicate.DatasetState) bool { return !concerned[name] })
	maps.DeleteFunc(v.State.Disks, func(name string, d *replicate.DiskState) bool { return d == nil || v.Job.DiskTarget(name) == nil })
	v.State.Orphans = slices.DeleteFunc(v.State.Orphans, func(g *replicate.Orphan) bool {
		return !slices.ContainsFunc(v.Job.Targets, func(t replicate.Target) bool { return t.Name == g.Target })
	})
	for source, d := range v.State.Datasets {
		maps.DeleteFunc(d.Targets, func(name string, _ *replicate.CopyState) bool {
			return v.Excluded[name][source] || !slices.ContainsFunc(v.Job.Targets, func(t replicate.Target) bool { return t.Name == name })
		})
		if len(v.Job.Targets) > 0 {
			d.Local = nil
		}
	}
}

// Steps is the protection that the streams of a plan need on the source before they start. If the
// process is killed after any of their snapshots arrived, that snapshot is the base of the next
// increment. If a receive was interrupted, the next run resumes it only while the snapshot exists.
type Steps struct {
	// Hold lists the last snapshot of each stream, by full name.
	Hold []string
	// Bookmarks are new bookmarks of the snapshots that the streams bring.
	Bookmarks []StepBookmark
}

// StepBookmark is a bookmark of the job on the source.
type StepBookmark struct {
	Dataset, Snapshot string // Snapshot is the full name
	zfs.Version              // the bookmark
}

// maxStepBookmarks is how many snapshots of one stream get a bookmark. If it brings more, only the
// last one does: most are stale after the run, and without libzfs_core each needs a command.
const maxStepBookmarks = 30

// StepsOf returns the protection for a plan.
func (v *Survey) StepsOf(p *plan.Plan) *Steps {
	s, sources := &Steps{}, v.Source.ByName()
	for d, step := range p.Streams() {
		source := sources[d.Source]
		if source == nil {
			continue
		}
		last, ok := source.SnapshotOf(step.ToGUID)
		if !ok {
			continue
		}
		if full := last.In(source.Name); v.Job.HoldsSource() && !slices.Contains(s.Hold, full) {
			s.Hold = append(s.Hold, full)
		}
		brings := step.Receive.Arrival.Snapshots
		if len(brings) > maxStepBookmarks || len(brings) == 0 {
			brings = []zfs.SnapshotID{{Name: last.Name, GUID: last.GUID}}
		}
		for _, b := range brings {
			if have, ok := source.SnapshotOf(b.GUID); ok && v.Job.Bookmarks != "none" {
				s.bookmark(v.Job.Name, source, have)
			}
		}
	}
	return s
}

func (s *Steps) bookmark(job string, d *zfs.Dataset, of zfs.Version) {
	full := bookmarkOf(job, d.Name, of.Name)
	if full == "" || hasNamedBookmark(d, full, of.GUID) {
		return
	}
	b := StepBookmark{Dataset: d.Name, Snapshot: of.In(d.Name), Version: of}
	b.Kind, b.Name = zfs.Bookmark, zfs.TagPrefix+job+":"+of.Name
	s.Bookmarks = append(s.Bookmarks, b)
}

// Names returns the bookmarks as a map from their full names to their snapshots.
func (s *Steps) Names() map[string]string {
	out := make(map[string]string, len(s.Bookmarks))
	for _, b := range s.Bookmarks {
		out[b.In(b.Dataset)] = b.Snapshot
	}
	return out
}

// AddBookmarks adds bookmarks that the run has created to the listing of the source. The caller
// must not read it concurrently.
func (v *Survey) AddBookmarks(all []StepBookmark) {
	sources := v.Source.ByName()
	for _, b := range all {
		if d := sources[b.Dataset]; d != nil && !hasNamedBookmark(d, b.In(d.Name), b.GUID) {
			d.Versions = append(slices.Clip(d.Versions), b.Version)
			zfs.SortVersions(d.Versions)
		}
	}
}
