package runner

import (
	"context"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// Delegation is the command that lets an unprivileged user do a job's part on one host.
type Delegation struct {
	Host    string `json:"host"`
	User    string `json:"user"`
	Command string `json:"command"`
}

// delegations returns the zfs allow commands for the hosts where a job does not run as root. It
// includes permissions in force, because not every release lets the user read them. access lists the
// properties that copies get from the source (see zfs.Dataset.Access).
func delegations(ctx context.Context, j *replicate.Job, source *side, targets []*side, access []string) []*Delegation {
	var out []*Delegation
	for _, s := range append([]*side{source}, targets...) {
		dataset := source.at.Name
		if s.target != nil {
			name := s.target.CopyOf(dataset, dataset)
			if dataset = zfs.ParentOf(name); dataset == "" { // creating a dataset needs permission on its parent
				dataset = name
			}
		}
		f, err := s.host.Facts(ctx)
		if err != nil || f.Root || f.User == "" || dataset == "" {
			continue // the preview reports the error
		}
		out = append(out, &Delegation{Host: s.at.Host, User: f.User,
			Command: zfs.CommandLine([]string{"zfs", "allow", "-u", f.User, strings.Join(permissions(j, s.target, f.ZFS, access), ","), dataset})})
	}
	return out
}

// permissions returns the permissions that a job needs at target t or, if t is nil, at its source.
func permissions(j *replicate.Job, t *replicate.Target, zfsVersion string, access []string) []string {
	var p []string
	others, retention := "source", j.Retention
	if t != nil {
		p = []string{preflight.ReceivePermission(zfsVersion, false), "create", "mount", "canmount", "readonly", "userprop", "compression", "recordsize", "checksum", "copies", "dnodesize", "volblocksize"}
		for _, name := range access {
			if !slices.Contains(t.Properties.Exclude, name) {
				p = append(p, name)
			}
		}
		for name := range t.Properties.Set {
			if !zfs.UserProperty(name) {
				p = append(p, name)
			}
		}
		if retention = t.Retention; t.OnDivergence == "rotate" || t.FollowsRenames() {
			p = append(p, "rename")
		}
		if t.Mirror != nil {
			p = append(p, "destroy")
		}
	} else {
		others = "target"
		if j.Snapshots.Take != "" {
			p = append(p, "snapshot", "mount") // taking a snapshot needs both
		}
		if len(j.Freeze) > 0 {
			p = append(p, "userprop") // freeze.Property
		}
		if len(j.Targets) > 0 {
			p = append(p, "send")
			if j.Bookmarks != "none" {
				p = append(p, "bookmark")
			}
		}
	}
	if len(j.Targets) > 0 && j.Holds != "none" && j.Holds != others {
		p = append(p, "hold", "release")
	}
	if retention != nil {
		p = append(p, "destroy", "mount") // targets already have mount
	}
	slices.Sort(p)
	return slices.Compact(p)
}

// accessOf returns the names of the properties in zfs.Dataset.Access of any dataset, sorted.
func accessOf(datasets []*zfs.Dataset) []string {
	names := map[string]bool{}
	for _, d := range datasets {
		for name := range d.Access() {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Denied is a job-file key that a side does not permit, because of its restricted key, its host or
// its datasets.
type Denied struct {
	Target string `json:"target"`
	Key    string `json:"key"`  // in the job file
	When   string `json:"when"` // the condition under which a run fails
	Error  string `json:"error"`
	Hint   string `json:"hint,omitempty"`
}

// asking returns a function that runs an operation without a name, which only asks for permission.
func asking[A any](op hosts.Op[A, hosts.None]) func(context.Context, hosts.Runner) error {
	return func(ctx context.Context, on hosts.Runner) error {
		var nothing A
		return hosts.Run(ctx, on, op, nothing)
	}
}

// denied queries whether the targets permit what the job requires.
func (w *jobRun) denied(ctx context.Context) (all []Denied) {
	for _, t := range w.targets {
		for _, may := range []struct {
			key, when string
			set       bool
			asks      func(context.Context, hosts.Runner) error
		}{
			{`on_divergence = "rotate"`, "a copy has diverged", t.target.OnDivergence == "rotate", asking(hosts.OpRenameDiverged)},
			{`on_rename = "follow"`, "a source dataset is renamed", t.target.FollowsRenames(), asking(hosts.OpRenameCopies)},
			{"mirror", "the source no longer has a snapshot of a copy", t.target.MirrorsSnapshots(), asking(hosts.OpDestroy)},
			{"mirror.gone", "a copy is due to be destroyed", t.target.MirrorsDatasets(), asking(hosts.OpDestroyOrphans)},
		} {
			if !may.set {
				continue
			}
			if err := may.asks(ctx, t); fault.ClassOf(err) == fault.Refused { // the preview reports unreachable targets
				all = append(all, Denied{Target: t.name, Key: may.key, When: may.when, Error: err.Error(), Hint: fault.HintOf(err)})
			}
		}
	}
	return all
}
