package replicate

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/zfs"
)

// Mirror destroys on a target what was deleted on the source.
type Mirror struct {
	// Limit is the maximum number of snapshots per dataset, and of datasets, that one run
	// destroys; nil = 100.
	Limit *int `toml:"limit,omitempty"`
	// Gone is the grace period before a run destroys an orphan. 0, written "keep", means never.
	Gone Grace `toml:"gone,omitempty"`
}

// AtMost returns Limit or its default.
func (m *Mirror) AtMost() int {
	if m.Limit == nil {
		return defaultPruneLimit
	}
	return *m.Limit
}

// MirrorsSnapshots reports whether the mirror destroys snapshots. A retention grid replaces that.
func (t *Target) MirrorsSnapshots() bool { return t.Mirror != nil && t.Retention == nil }

// MirrorsDatasets reports whether the mirror destroys orphans.
func (t *Target) MirrorsDatasets() bool { return t.Mirror != nil && t.Mirror.Gone != 0 }

// mirror adds the snapshots that were deleted on the source to p.
func (v *RunState) mirror(p *Pruning, t *TargetState) {
	has := map[uint64]bool{} // in any dataset: a promotion moves snapshots
	for _, d := range slices.Concat(v.All, v.Source.Datasets) {
		for _, s := range d.Snapshots() {
			has[s.GUID] = true
		}
	}
	for _, s := range v.To(t.Name) {
		if dst := t.Dataset(t.CopyOf(v.Root, s.Name)); dst != nil {
			v.mirrorOne(p, t, s, dst, has)
		}
	}
}

// mirrorOne adds the deleted snapshots of one dataset. If the source is partially received, or has
// no snapshot in the scope, it keeps all. It also keeps snapshots newer than the most recent
// common one, because they are a divergence.
func (v *RunState) mirrorOne(p *Pruning, t *TargetState, source, dst *zfs.Dataset, has map[uint64]bool) {
	p.Kept += v.Scope.Count(dst)
	base, _ := CommonSnapshot(source, dst)
	protected := t.protected(source, dst)
	var deleted []zfs.Version
	for _, s := range dst.Snapshots() {
		switch why := protected[s.GUID]; {
		case has[s.GUID] || !v.Scope.Has(s.Name):
		case source.Inconsistent() || v.Scope.Count(source) == 0:
			p.KeepReasons[s.In(dst.Name)] = "the source tells of no snapshot"
		case why != "":
			p.Protected++
			p.KeepReasons[s.In(dst.Name)] = why
		case s.CreateTXG > base.CreateTXG:
			p.KeepReasons[s.In(dst.Name)] = "newer than the newest common snapshot"
		default:
			deleted = append(deleted, s)
		}
	}
	result := &PruneResult{Original: source.GUID}
	if len(deleted) == 0 {
		result.Fingerprint = "mirror"
	}
	p.Results[source.Name] = result
	of := uint64(0)
	if known := v.State.Datasets[source.Name]; known != nil && known.Targets[t.Name] != nil {
		of = known.Targets[t.Name].Of
	}
	switch {
	case len(deleted) == 0 || v.NoLimit:
	case of == 0:
		result.Original = 0
		p.refuseMirror("nothing was removed: %s lacks %s that its copy has, and no run saw it before: it may have been restored", source.Name, english.Plural(len(deleted), "snapshot", ""))
	case of != source.GUID:
		result.Original = 0
		p.refuseMirror("nothing was removed: %s was created anew, or restored, and lacks %s that its copy has", source.Name, english.Plural(len(deleted), "snapshot", ""))
	case len(deleted) > t.Mirror.AtMost():
		p.refuseMirror("nothing was removed: %s of %s are gone from the source, and mirror.limit allows one run %d", english.Plural(len(deleted), "snapshot", ""), dst.Name, t.Mirror.AtMost())
	}
	p.Kept -= len(deleted)
	for _, s := range deleted {
		p.Remove = append(p.Remove, s.In(dst.Name))
	}
}

// refuseMirror sets the error of p, which then destroys nothing.
func (p *Pruning) refuseMirror(format string, args ...any) {
	p.Refused, p.Error = true, fmt.Sprintf(format, args...)
}
