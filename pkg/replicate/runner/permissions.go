package runner

import (
	"context"
	"fmt"
	"slices"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/fault"
	"zxfer/pkg/freeze"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// Delegation concerns a host on which a job does not run as root.
type Delegation struct {
	Host string `json:"host"`
	User string `json:"user"`
	// Command grants the missing permissions; "" = nothing is missing.
	Command string `json:"command"`
	// Unknown is why the permissions could not be read. Command then grants all that the job needs.
	Unknown string `json:"unknown,omitempty"`
	// RootOnly are keys of the job file whose operations no permission lets another account than root run on
	// Linux.
	RootOnly []string `json:"root_only,omitempty"`
}

// delegation returns what the user of a side lacks for the job's whole life, or nil if the user is root or
// unknown. done is what the next run does there, and dataset is where it needs permissions.
func delegation(ctx context.Context, j *replicate.Job, s *session.Side, done zfs.Work, dataset string, tree bool) *Delegation {
	f, err := s.Host.Facts(ctx)
	if err != nil || f.Root || f.User == "" {
		return nil // the preview reports the error
	}
	d := &Delegation{Host: s.At.Host, User: f.User}
	for _, n := range needs(j, s.Target) {
		switch acts := n.op.Acts(s.Target != nil); {
		case n.command:
		case zfs.RootOnly(acts):
			d.RootOnly = append(d.RootOnly, n.key) // each key has at most one such operation
		default:
			done.Ops = append(done.Ops, acts...)
		}
	}
	if s.Target == nil && len(j.Freeze) > 0 {
		done.Ops, done.Properties = append(done.Ops, hosts.OpSnapshotFrozen.Acts(false)...), append(done.Properties, freeze.Property)
	}
	if s.Target != nil && s.Target.Disk != nil {
		d.RootOnly = append(d.RootOnly, "disk")
	}
	done.ZFS = f.ZFS
	missing := done.Permissions()
	has, err := hosts.Call(ctx, s.Host, hosts.OpPermitted, dataset)
	if err == nil {
		missing = has.Missing(missing, tree)
	} else if ctx.Err() == nil {
		d.Unknown = err.Error()
	}
	if len(missing) > 0 {
		d.Command = zfs.AllowCommand(f.User, missing, dataset)
	}
	return d
}

// planned is the plan for one target: of the next run, and as if there were no copies yet.
type planned struct {
	to         *session.Side
	now, first *plan.Plan
	listing    zfs.Listing // of the target, before the run
}

// delegations returns the delegations of the source and of the targets with a plan.
func delegations(ctx context.Context, s *session.Session, source *zfs.Listing, plans []planned) (all []*Delegation) {
	sent := zfs.Work{Raw: true}
	for _, p := range plans {
		for _, one := range []*plan.Plan{p.now, p.first} {
			work := preflight.SourceWork(one, "")
			sent.Ranges, sent.Raw = sent.Ranges || work.Ranges, sent.Raw && work.Raw
		}
	}
	all = append(all, delegation(ctx, s.Job, s.Source, sent, source.Root, s.Job.Recursive))
	for _, p := range plans {
		work, first := preflight.TargetWork(p.now, ""), preflight.TargetWork(p.first, "")
		work.Ops, work.Properties = append(work.Ops, first.Ops...), append(work.Properties, first.Properties...)
		work.Renames = work.Renames || p.to.Target.OnDivergence == "rotate"
		at := preflight.Grantee(work, &p.listing)
		all = append(all, delegation(ctx, s.Job, p.to, work, at, s.Job.Recursive || at != p.listing.Root))
	}
	return slices.DeleteFunc(all, func(d *Delegation) bool { return d == nil })
}

// firstPlan plans the transfer to a target as if it had no copy yet, for the permissions that any new dataset
// will need.
func firstPlan(p *pass, t *session.Side, v *decision.Survey, target *zfs.Listing) *plan.Plan {
	b := request(p, t, v)
	req := b.Request.Plan
	req.First, req.Rotate = plan.FirstAll, ""
	first := plan.Make(req, plan.State{Source: b.Survey, Target: zfs.Listing{Root: target.Root, Ancestors: target.Ancestors, Pool: target.Pool}})
	return &first
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
	// Command is set if Key is a command that the key does not permit. Runs do not need it.
	Command bool `json:"command,omitempty"`
}

// need is an operation that a job will run on a side.
type need struct {
	key  string // in the job file
	when string // the condition under which a run needs the operation
	op   hosts.Operation
	// harmless is set if a run without it only leaves something undone.
	harmless bool
	// command is set if no run needs it, but a command with the job's hosts.
	command bool
	// reads is set if a stream comes from the side, although it has the copy. roles is set for a change of roles.
	reads, roles bool
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
	command := func(n need) {
		n.when, n.harmless, n.command = "you run it", true, true
		all = append(all, n)
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
			all = append(all, need{key: "bookmarks", when: "a bookmark is superseded", op: hosts.OpDestroy, harmless: true})
		}
		if sends {
			command(need{key: "zxfer heal", op: hosts.OpDamage})
			command(need{key: "zxfer restore", op: hosts.OpSetProperties})
			command(need{key: "zxfer replicate switch", op: hosts.OpSetProperties, roles: true})
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
	command(need{key: "zxfer heal", op: hosts.OpDamage})
	command(need{key: "zxfer restore", op: hosts.OpTransfer, reads: true})
	command(need{key: "zxfer replicate switch", op: hosts.OpSetProperties, roles: true})
	return all
}

// denied returns the operations of the job's whole life that a side does not permit, because its host lacks
// zxfer or its key lacks a grant. It asks for nothing but the grants of the key.
func denied(ctx context.Context, s *session.Session) (all []Denied) {
	for _, side := range append([]*session.Side{s.Source}, s.Targets...) {
		root := s.Root(side).Name
		key := side.Grants(ctx)
		seen := map[string]bool{}
		for _, n := range needs(s.Job, side.Target) {
			d := Denied{Target: side.Name, Key: n.key, When: n.when, Harmless: n.harmless, Command: n.command}
			if n.command && key == nil {
				continue
			}
			if err := side.Host.Require(ctx, n.op); fault.ClassOf(err) == fault.Refused && n.op.Name() != hosts.OpTransfer.Name() {
				d.Error, d.Hint = err.Error(), fault.HintOf(err)
			}
			if key == nil {
				// not restricted
			} else if n.roles {
				d.Error, d.Hint = authz.NoRoleChange, "use a key that is not restricted"
			} else if change := key.Lacks(n.op, root, side.Target != nil && !n.reads); change != "" {
				d.Error = fmt.Sprintf("the key of zxfer on %s does not permit it", side.Host.Label())
				d.Hint = fmt.Sprintf("in authorized_keys on %s: %s; the key has: %s", side.Host.Label(), change, key)
				if n.harmless && !n.command {
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
