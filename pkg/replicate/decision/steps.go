package decision

import (
	"slices"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

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
