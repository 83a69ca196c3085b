package replicate

import (
	"cmp"
	"slices"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// RetriesOrDefault returns Retries or its default.
func (j *Job) RetriesOrDefault() int { return valueOr(j.Retries, transport.Retries) }

func valueOr(n *int, fallback int) int {
	if n == nil {
		return fallback
	}
	return *n
}

// Find returns the job with that name, or nil.
func (f *File) Find(name string) *Job {
	for i := range f.Jobs {
		if f.Jobs[i].Name == name {
			return &f.Jobs[i]
		}
	}
	return nil
}

// Has reports whether any host has a job with that name.
func (f *File) Has(name string) bool { return f.Find(name) != nil || f.OnOtherHosts(name) }

// OnOtherHosts reports whether only other hosts have a job with that name.
func (f *File) OnOtherHosts(name string) bool {
	return f.Find(name) == nil && slices.Contains(f.Elsewhere, name)
}

// TransferTo returns the transfer options of a target.
func (j *Job) TransferTo(t *Target) *Transfer {
	if t.Transfer != nil {
		return t.Transfer
	}
	return &j.Transfer
}

// SnapshotLimitsOf returns the selection of snapshots for a target. Newest stands for LatestOnly.
func (j *Job) SnapshotLimitsOf(t *Target) SnapshotLimits {
	l := cmp.Or(t.Snapshots.SnapshotLimits, j.Snapshots.SnapshotLimits)
	if l.LatestOnly {
		l.Newest, l.LatestOnly = 1, false
	}
	return l
}

// FirstAt returns the history to send for a dataset that is new on the target.
func (j *Job) FirstAt(t *Target) plan.First { return cmp.Or(t.First, j.First, plan.FirstAll) }

// OverrideFirst overrides First of the job and of its targets; "" changes nothing.
func (j *Job) OverrideFirst(first plan.First) {
	if first == "" {
		return
	}
	j.First = first
	for i := range j.Targets {
		j.Targets[i].First = ""
	}
}

// DrillAt returns the drill options of a target.
func (j *Job) DrillAt(t *Target) Drill {
	for _, d := range []*Drill{t.Drill, j.Drill} {
		if d != nil {
			return *d
		}
	}
	return Drill{}
}

// DrillSchedule returns the schedule of drills, or "" if there is none.
func (j *Job) DrillSchedule() string {
	if j.Drill == nil {
		return ""
	}
	return j.Drill.Schedule
}

// HasDrills reports whether the job file configures drills.
func (j *Job) HasDrills() bool {
	return j.Drill != nil || slices.ContainsFunc(j.Targets, func(t Target) bool { return t.Drill != nil })
}

// FollowsRenames reports whether the target's copies are renamed with their sources.
func (t *Target) FollowsRenames() bool { return t.OnRename == "follow" }

// RenameRoot returns the dataset of the target at or below which copies may be renamed.
func (t *Target) RenameRoot() string {
	e, err := endpoint.Parse(t.To)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(e.Name, "/")
}

// HoldsSource reports whether the job holds snapshots on the source.
func (j *Job) HoldsSource() bool { return j.Holds != "none" && j.Holds != "target" }

// defaultPruneLimit is higher than normal runs need. A run exceeds it only if the job file changed
// or something is wrong.
const defaultPruneLimit = 100

// PruneLimitOrDefault returns PruneLimit or its default.
func (j *Job) PruneLimitOrDefault() int { return valueOr(j.PruneLimit, defaultPruneLimit) }

// CopyOf returns the name of the copy of a source dataset at or below root, or "" if the target
// cannot have one.
func (t *Target) CopyOf(root, source string) string {
	e, err := endpoint.Parse(t.To)
	if err != nil {
		return ""
	}
	name, err := plan.TargetName(root, e.Name)
	if err != nil {
		return ""
	}
	return name + strings.TrimPrefix(source, root)
}

// WithoutRetention returns the sides of a job that keep all its snapshots: SourceSide if it takes
// snapshots, and names of targets.
func (j *Job) WithoutRetention() (out []string) {
	if j.Retention == nil && j.Snapshots.Take != "" {
		out = append(out, SourceSide)
	}
	for i := range j.Targets {
		if t := &j.Targets[i]; t.Retention == nil && !t.MirrorsSnapshots() {
			out = append(out, t.Name)
		}
	}
	return out
}

// A relay is a job whose source is a copy that a job of another host sends there. That job holds the
// most recent snapshot that it has verified by GUID, with its tag. The relay sends only snapshots up
// to that one: later ones may be foreign, and be rolled back.

// HeldByOthers reports whether a hold belongs to a job of another host that the file names: the job that
// sends the source of a relay, or a job that sends a copy on.
func (f *File) HeldByOthers(tag string) bool {
	job, _ := JobOfTag(tag)
	return slices.ContainsFunc(f.Jobs, func(j Job) bool {
		return j.UpstreamTag() == tag || slices.ContainsFunc(j.Targets, func(t Target) bool { return slices.Contains(t.SentOnBy, job) })
	})
}

// UpstreamTag returns the tag of the holds of the job that sends the source, "" = the job is no relay.
func (j *Job) UpstreamTag() string {
	if j.Snapshots.ReceivedFrom == "" {
		return ""
	}
	return zfs.TagPrefix + j.Snapshots.ReceivedFrom
}

// LimitOrDefault returns Limit or its default.
func (m *Mirror) LimitOrDefault() int { return valueOr(m.Limit, defaultPruneLimit) }

// MirrorsSnapshots reports whether the mirror destroys snapshots. A retention grid replaces that.
func (t *Target) MirrorsSnapshots() bool { return t.Mirror != nil && t.Retention == nil }

// MirrorsDatasets reports whether the mirror destroys orphans.
func (t *Target) MirrorsDatasets() bool { return t.Mirror != nil && t.Mirror.Gone != 0 }

// ImportsDisks reports whether a run may import or export a pool, or scrub a disk's pool.
func (j *Job) ImportsDisks() bool {
	return slices.ContainsFunc(j.Targets, func(t Target) bool {
		return t.Disk != nil && (t.Disk.Import || t.Disk.Export || t.Disk.Scrub > 0)
	})
}

// DiskTarget returns the target on a disk with that name, or nil.
func (j *Job) DiskTarget(name string) *Target {
	for i := range j.Targets {
		if t := &j.Targets[i]; t.Name == name && t.Disk != nil {
			return t
		}
	}
	return nil
}

// SelectsByName reports whether a target takes a dataset by its name alone, without a property.
func (j *Job) SelectsByName(t *Target, source, dataset string) bool {
	return j.Property == "" && t.Property == "" && j.SelectsName(source, dataset) && t.SelectsName(source, dataset)
}

// UserProperties returns the properties that select datasets of a job and its targets.
func (j *Job) UserProperties() []string {
	var out []string
	add := func(c *Selection) {
		if name, _, _ := strings.Cut(c.Property, "="); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	add(&j.Selection)
	for i := range j.Targets {
		add(&j.Targets[i].Selection)
	}
	return out
}
