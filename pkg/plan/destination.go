package plan

import (
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// destination determines the target of a dataset, and refuses names that the target cannot have.
type destination struct {
	*findings
	*arrivals
}

// check refuses a target inside the source or below a volume.
func (at destination) check() bool {
	source, target := at.req.Source, at.targetRoot
	if at.state.SameHost && source == target {
		at.conflict(SameDataset, source, target, "name another target", "source and target are both %s", at.onSource(source))
		return false
	}
	if at.state.SameHost && at.req.Recursive && strings.HasPrefix(target, source+"/") {
		at.conflict(SameDataset, source, target, "name a target outside of "+source+", or omit {{recursive}}",
			"target %s is a descendant of %s, which is sent recursively", at.onTarget(target), at.onSource(source))
		return false
	}
	for _, a := range at.state.Target.Ancestors {
		if a.Type == zfs.Volume {
			at.conflict(TypeMismatch, source, target, "name another target", "%s cannot exist: %s is a volume", at.onTarget(target), a.Name)
			return false
		}
	}
	return true
}

// checkRole refuses to overwrite a copy that became the source in a fail over. A restore into such
// a dataset is a restore of a source.
func (at destination) checkRole(d *zfs.Dataset, out *Dataset) bool {
	if at.req.Restore {
		return true
	}
	of, role, err := zfs.RoleOf(out.Target, func(name string) map[string]zfs.Property {
		if t := at.target[name]; t != nil {
			return t.Properties
		}
		return nil
	})
	switch {
	case err != nil:
		at.conflict(Promoted, d.Name, out.Target, "if no fail over is in progress: "+at.state.TargetAt.Command("zfs", "inherit", zfs.RoleProperty, of), "%s: %s", at.onTarget(of), err)
	case !role.Receives():
		at.conflict(Promoted, d.Name, out.Target,
			"to make the former source a copy of it: zxfer replicate switch "+role.Job+"\nto discard its changes instead, clear its role: "+at.state.TargetAt.Command("zfs", "inherit", zfs.RoleProperty, of),
			"%s became the source %s", at.onTarget(of), role.Describe())
	default:
		return true
	}
	return false
}

// parentMissing reports whether ancestors of the target must be created.
func (at destination) parentMissing(target string) bool {
	parent := zfs.ParentOf(target)
	return parent != "" && at.target[parent] == nil && at.byTarget[parent] == nil
}

// checkNames refuses names that are too long or invalid on the target.
func (at destination) checkNames(d *zfs.Dataset, out *Dataset) bool {
	longest := out.Final.Name
	for _, v := range at.req.carried(d, out.Final) {
		if len(v.Name) > len(longest) {
			longest = v.Name
		}
	}
	if _, _, err := zfs.ParseSnapshot(out.Target + "@" + longest); err != nil {
		at.conflict(BadName, d.Name, out.Target, "name a shorter target", "%s cannot be received: %s", at.onSource(d.Name), err)
		return false
	}
	if _, _, err := zfs.ParseSnapshot(out.Final.In(d.Name)); err != nil { // the snapshot is not taken yet
		at.conflict(BadName, d.Name, out.Target, "choose a shorter name", "cannot take snapshot %s: %s", at.onSource(out.Final.In(d.Name)), err)
		return false
	}
	return true
}

// noteExtra notes target datasets that are missing or excluded on the source.
func (at destination) noteExtra() {
	if !at.req.Recursive {
		return
	}
	var extra, excluded []string
	for _, t := range at.state.Target.Datasets {
		source := at.req.Source + strings.TrimPrefix(t.Name, at.targetRoot)
		switch d := at.req.ExcludedDatasets[source]; {
		case at.source[source] != nil || at.req.UpToDate[source] || zfs.IsDiverged(t.Name):
		case d == nil:
			extra = append(extra, t.Name)
		case sharesSnapshot(d, t):
			excluded = append(excluded, t.Name)
		}
	}
	if len(excluded) > 0 {
		at.note("unchanged, because their originals are excluded: %s", finding.JoinFirst(excluded, maxEvidence))
	}
	if len(extra) > 0 {
		at.note("unchanged, because the source lacks these datasets: %s", finding.JoinFirst(extra, maxEvidence))
	}
}

// sharesSnapshot reports whether two datasets have a common snapshot.
func sharesSnapshot(d, t *zfs.Dataset) bool {
	have := d.SnapshotsByGUID()
	return slices.ContainsFunc(t.Snapshots(), func(v zfs.Version) bool { _, both := have[v.GUID]; return both })
}

// TargetName returns the target for a source dataset. If the typed name is a pool or ends in
// "/", the source's path below its pool is appended. Errors have class fault.Usage.
func TargetName(source, typed string) (string, error) {
	name := strings.TrimSuffix(typed, "/")
	if name == "" {
		return "", fault.Usagef("name a pool or dataset", "target %q does not name a dataset", typed)
	}
	if strings.HasSuffix(typed, "/") || !strings.Contains(typed, "/") {
		if _, below, ok := strings.Cut(source, "/"); ok {
			name += "/" + below
		}
	}
	return zfs.ParseDataset(name)
}

// targetOf maps the source root or a descendant to its target.
func targetOf(source, root, targetRoot string) string {
	return targetRoot + strings.TrimPrefix(source, root)
}

// relocate applies the renaming from source to target to name. It strips their common last
// components and exchanges the remaining prefix.
func relocate(source, target, name string) (string, bool) {
	for {
		i, j := strings.LastIndexByte(source, '/'), strings.LastIndexByte(target, '/')
		if i < 0 || j < 0 || source[i:] != target[j:] {
			break
		}
		source, target = source[:i], target[:j]
	}
	rest, ok := strings.CutPrefix(name, source)
	if !ok || rest != "" && rest[0] != '/' && rest[0] != '@' {
		return "", false
	}
	return target + rest, true
}
