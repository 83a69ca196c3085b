package runner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/agent/authz"
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
	// Harmless is set if runs do not fail, but only leave something undone.
	Harmless bool `json:"harmless,omitempty"`
}

// need is an operation that a job will run on a side.
type need struct {
	key  string // in the job file
	when string // the condition under which a run needs the operation
	op   hosts.Operation
	// harmless is set if a run without it only leaves something undone.
	harmless bool
}

// needs returns the operations that a job will run on its source or, if t is not nil, on a target. It
// omits those that each run starts with, because the preview runs them too.
func needs(j *replicate.Job, t *replicate.Target) (all []need) {
	add := func(set bool, key, when string, ops ...hosts.Operation) {
		for _, op := range ops {
			if set {
				all = append(all, need{key: key, when: when, op: op})
			}
		}
	}
	sends := len(j.Targets) > 0
	if t == nil {
		add(j.Snapshots.Take != "", "snapshots.take", "a snapshot is due", hosts.OpSnapshot)
		add(sends, "source", "there is something to send", hosts.OpTransfer)
		add(j.Retention != nil, "retention", "the retention policy destroys a snapshot", hosts.OpDestroy)
		add(sends && j.Holds != "none" && j.Holds != "target", "holds", "there is something to send", hosts.OpHold, hosts.OpRelease)
		marks := sends && j.Bookmarks != "none"
		add(marks, "bookmarks", "there is something to send", hosts.OpBookmark)
		if marks {
			all = append(all, need{"bookmarks", "a bookmark is superseded", hosts.OpDestroy, true})
		}
		return all
	}
	add(true, "to", "there is something to send", hosts.OpTransfer)
	add(t.Retention != nil, "retention", "the retention policy destroys a snapshot", hosts.OpDestroy)
	add(j.Holds != "none" && j.Holds != "source", "holds", "there is something to send", hosts.OpHold, hosts.OpRelease)
	add(t.OnDivergence == "rotate", `on_divergence = "rotate"`, "a copy has diverged", hosts.OpRenameDiverged)
	add(t.FollowsRenames(), `on_rename = "follow"`, "a source dataset is renamed", hosts.OpRenameCopies)
	add(t.MirrorsSnapshots(), "mirror", "the source no longer has a snapshot of a copy", hosts.OpDestroy)
	add(t.MirrorsDatasets(), "mirror.gone", "a copy is due to be destroyed", hosts.OpDestroyOrphans)
	add(j.Drill != nil || t.Drill != nil, "drill", "a drill is due", hosts.OpCreateDrillClone)
	return all
}

// denied returns the operations of the job's whole life that a side does not permit, because its host lacks
// zxfer or its key lacks a grant. It asks for nothing but the grants of the key.
func (w *jobRun) denied(ctx context.Context) (all []Denied) {
	for _, s := range append([]*side{w.source}, w.targets...) {
		root := w.root(s)
		key := w.grantsOf(ctx, s)
		seen := map[string]bool{}
		for _, n := range needs(w.job, s.target) {
			d := Denied{Target: s.name, Key: n.key, When: n.when, Harmless: n.harmless}
			if err := s.host.Require(ctx, n.op); fault.ClassOf(err) == fault.Refused && n.op.Name() != hosts.OpTransfer.Name() {
				d.Error, d.Hint = err.Error(), fault.HintOf(err)
			}
			if key == nil {
				// not restricted
			} else if change := key.Lacks(n.op, root.Name, s.target != nil); change != "" {
				d.Error = fmt.Sprintf("the key of zxfer on %s does not permit it", s.host.Label())
				d.Hint = fmt.Sprintf("in authorized_keys on %s: %s; the key has: %s", s.host.Label(), change, key)
				if n.harmless {
					d.Hint += `; or in the job file: bookmarks = "none"`
				}
			}
			if d.Error == "" || seen[d.Key+d.Hint] {
				continue
			}
			seen[d.Key+d.Hint] = true
			all = append(all, d)
		}
	}
	return all
}

// grantsOf returns the policy of the key that a side's host serves, or nil if it is not restricted or
// unknown.
func (w *jobRun) grantsOf(ctx context.Context, s *side) *authz.Policy {
	f, err := s.host.Facts(ctx) // the preview and the run report the error
	if err != nil || len(f.Grants) == 0 {
		return nil
	}
	p, err := authz.ParseFlags(f.Grants)
	if err != nil {
		return nil // from a host that lies
	}
	return p
}
