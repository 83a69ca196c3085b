package decision

import (
	"fmt"
	"slices"

	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// After a run that had nothing to send, hold or prune for a dataset, the dataset is cached as
// unchanged. While its snapshots and those of its copies are the same, runs skip it without
// listing its snapshots. zfs.ChangedProperty shows a change at the cost of one dataset. A listing
// costs as much for each snapshot and bookmark.
//
// The cache only decides to do nothing. All actions follow from a listing of the same run.
// Bookmarks and holds, which do not affect zfs.ChangedProperty, therefore cannot cause a wrong
// action: an unchanged dataset needs neither.

// minChangeAge is the minimum time in seconds between the last change of a dataset's snapshots and
// the start of a cached listing. The property has a resolution of one second, so a later change in
// the same second would be invisible.
const minChangeAge = 2

// UnchangedCache holds the fingerprints of an unchanged dataset and its copies.
type UnchangedCache struct {
	Source  string            `json:"source"`  // of the dataset
	Own     bool              `json:"own"`     // the most recent snapshot is one of the job's own
	Targets map[string]string `json:"targets"` // of the copies, by target name
}

// UnchangedSources returns the source datasets that have not changed and need no snapshot. It does not
// check the copies.
func UnchangedSources(v *Survey, before map[string]*UnchangedCache) []string {
	var out []string
	for _, d := range v.Source.Datasets {
		if s, known := before[d.Name], v.State.Datasets[d.Name]; s != nil && known != nil && isUnchanged(v, d, s, known) {
			out = append(out, d.Name)
		}
	}
	return out
}

func isUnchanged(v *Survey, d *zfs.Dataset, s *UnchangedCache, known *replicate.DatasetState) bool {
	frozen := func(z replicate.Freeze) bool { return z.Covers(v.Root, d.Name) }
	if slices.ContainsFunc(v.Job.Freeze, frozen) || d.SnapshotsChanged() == 0 || d.Inconsistent() || s.Source != fingerprint(d, 0) {
		return false
	}
	for i := range v.Job.Targets {
		name := v.Job.Targets[i].Name
		if v.Excluded[name][d.Name] {
			continue
		}
		if a := known.Targets[name]; a == nil || a.Error != "" || s.Targets[name] == "" {
			return false
		}
	}
	return v.Scope.Naming() == nil || s.Own && d.Get("written") == "0"
}

// CopyChanged reports whether a copy has changed.
func (s *UnchangedCache) CopyChanged(target string, dst *zfs.Dataset, a *replicate.CopyState) bool {
	return dst.ResumeToken() != "" || s.Targets[target] != fingerprint(dst, a.BaseGUID)
}

// CopyProperties returns the properties that CopyChanged needs.
func CopyProperties() []string {
	return append([]string{"guid", zfs.ChangedProperty, "origin", "encryptionroot", "receive_resume_token"}, zfs.ListedAccess()...)
}

// CacheUnchanged returns the new cache, by dataset, after all actions of the run. Skipped datasets keep
// their entry.
func CacheUnchanged(v *RunState, prunings []*Pruning, before map[string]*UnchangedCache) map[string]*UnchangedCache {
	open := map[string]bool{} // datasets that pruning must check again
	for _, p := range prunings {
		for source, l := range p.Results {
			open[source] = open[source] || l.Fingerprint == ""
		}
	}
	copies := map[string][]*pair{}
	for _, t := range v.Targets {
		for _, p := range v.pairs(t) {
			copies[p.source.Name] = append(copies[p.source.Name], p)
		}
	}
	out := map[string]*UnchangedCache{}
	for name := range v.Survey.Unchanged {
		out[name] = before[name]
	}
	for _, d := range v.Survey.Source.Datasets {
		if open[d.Name] || v.Survey.Unconfirmed[d.Name] > 0 || d.Inconsistent() || !showsChanges(d, v.Survey.Source.Started) {
			continue
		}
		s := &UnchangedCache{Source: fingerprint(d, 0), Targets: map[string]string{}}
		if latest, any := d.Latest(); any {
			_, s.Own = v.Survey.Scope.Own(latest.Name)
		}
		if s.addCopies(copies[d.Name]) {
			out[d.Name] = s
		}
	}
	return out
}

// addCopies adds the fingerprints of the copies to s. It returns false if a copy is not up to
// date, was sent in this run, lacks properties, or may have an invisible change.
func (s *UnchangedCache) addCopies(copies []*pair) bool {
	for _, p := range copies {
		if p.target.Failed || p.copied == nil || p.known.Lacks != "" || p.sent == nil || p.sent.Sent || p.known.Moving ||
			p.known.BaseGUID != p.sent.Newest.GUID || p.copied.ResumeToken() != "" || !showsChanges(p.copied, p.target.Listing.Started) {
			return false
		}
		s.Targets[p.target.Name] = fingerprint(p.copied, p.known.BaseGUID)
	}
	return true
}

// showsChanges reports whether any change of a dataset's snapshots after the start of a listing is
// visible in zfs.ChangedProperty.
func showsChanges(d *zfs.Dataset, began int64) bool {
	changed := d.SnapshotsChanged()
	return changed != 0 && changed+minChangeAge <= began
}

// fingerprint returns everything that decides whether a dataset has changed. It includes the
// origin, because a promotion moves snapshots without a change of the clone's zfs.ChangedProperty, and the
// access properties, which a run sets on copies.
func fingerprint(d *zfs.Dataset, base uint64) string {
	return fmt.Sprintf("%s %s %q %q %d %s", d.Get("guid"), d.Get(zfs.ChangedProperty), d.Get("origin"), d.Get("encryptionroot"), base, d.AccessFingerprint())
}
