package preflight

import (
	"fmt"
	"maps"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// permissions notes the command that grants the permissions which the plan needs and a user who is not root
// lacks. Whether /dev/zfs is accessible is not known here.
func permissions(in *Input) []finding.Finding {
	var out []finding.Finding
	for _, p := range in.needed() {
		if p.host.Root || p.host.User == "" || len(p.missing) == 0 {
			continue
		}
		out = append(out, finding.Finding{
			Host: p.host.Name, Severity: finding.Note,
			Summary:  fmt.Sprintf("%s is not root: it needs ZFS permissions on %s", p.host.User, p.dataset),
			Evidence: "effective user " + p.host.User,
			Remedy:   "as root, once: " + remedy.MarkRoot(zfs.AllowCommand(p.host.User, p.missing, p.dataset)),
		})
	}
	return out
}

// needed are the permissions that a plan needs on one host.
type needed struct {
	host    *Host
	dataset string   // on which they are needed
	missing []string // without those that the host reported
}

// needed returns the permissions that the plan needs, or nil if it changes nothing.
func (in *Input) needed() []needed {
	if in.Plan.Steps() == 0 {
		return nil
	}
	at := in.Grantees()
	var out []needed
	for i, w := range []zfs.Work{SourceWork(&in.Plan, in.Source.ZFS), TargetWork(&in.Plan, in.Target.ZFS)} {
		h := []*Host{&in.Source, &in.Target}[i]
		missing := w.Permissions()
		if h.Permitted != nil {
			missing = h.Permitted.Missing(missing, true)
		}
		out = append(out, needed{h, at[i], missing})
	}
	return out
}

// Grantees returns the datasets of the source and of the target on which the plan needs permissions.
func (in *Input) Grantees() [2]string {
	return [2]string{in.SourceListing.Root, Grantee(TargetWork(&in.Plan, ""), &in.TargetListing)}
}

// Grantee returns the dataset of a target's listing on which permissions for work can be granted: the root of
// the copy, or its nearest existing ancestor.
func Grantee(w zfs.Work, l *zfs.Listing) string {
	if n := len(l.Ancestors); n > 0 && w.At(l.Root, len(l.Datasets) > 0) != l.Root {
		return l.Ancestors[n-1].Name
	}
	return l.Root
}

// nearestExisting returns the root of the copy or its nearest existing ancestor.
func nearestExisting(l *zfs.Listing) string { return Grantee(zfs.Work{}, l) }

// SourceWork returns what a plan does on the source.
func SourceWork(p *plan.Plan, zfsVersion string) zfs.Work {
	w := zfs.Work{ZFS: zfsVersion, Raw: true}
	for _, st := range p.Streams() {
		w.Ops, w.Raw, w.Ranges = []string{zfs.OpSend}, w.Raw && st.Send.Flags.Raw, w.Ranges || len(st.Send.Through) > 0
	}
	return w
}

// TargetWork returns what a plan does on the target.
func TargetWork(p *plan.Plan, zfsVersion string) zfs.Work {
	w := zfs.Work{ZFS: zfsVersion}
	add := func(needed bool, ops ...string) {
		if needed {
			w.Ops = append(w.Ops, ops...)
		}
	}
	for _, d := range p.Datasets {
		add(d.Rename != nil, zfs.OpRename)
		w.Renames = w.Renames || d.Rename != nil
		add(d.Discard != "", zfs.OpDiscard)
		add(d.CreateParents, zfs.OpCreate)
		add(len(d.DestroyedFirst) > 0, zfs.OpDestroy)
		add(len(d.MovedHolds) > 0, zfs.OpHold, zfs.OpRelease)
		add(len(d.SetAfter) > 0, zfs.OpSet)
		w.Properties = slices.AppendSeq(w.Properties, maps.Keys(d.SetAfter))
		for _, st := range d.Steps {
			add(true, zfs.OpReceive)
			add(st.Kind == plan.Clone, zfs.OpClone)
			w.RollsBack = w.RollsBack || st.Receive.Rollback
			w.Properties = slices.AppendSeq(w.Properties, maps.Keys(st.Receive.Set))
		}
	}
	add(len(p.ToJoin()) > 0, zfs.OpChangeKey)
	return w
}

// someUser is a placeholder for a user name.
const someUser = "USER"

// Allow returns shell lines for both hosts, each group below a comment that names the host. They grant the
// permissions that the plan needs, except permissions that the host's user has. If zxfer runs as root, they contain a
// placeholder for the user.
func Allow(in Input) []string {
	var lines []string
	commented := map[string]bool{}
	comment := func(h *Host, when string) {
		line := "# as root on " + h.Name + when
		if commented[line] {
			return
		}
		commented[line] = true
		if h.Root || h.User == "" {
			line += " (" + someUser + ": the account that zxfer runs as)"
		}
		lines = append(lines, line)
	}
	allow := func(h *Host, missing []string, dataset string) {
		user := h.User
		if h.Root || user == "" {
			user = someUser
		}
		lines = append(lines, zfs.AllowCommand(user, missing, dataset))
	}
	all := in.needed()
	for _, n := range all {
		if len(n.missing) == 0 {
			lines = append(lines, "# nothing is missing on "+n.host.Name+": "+n.host.User+" has all permissions on "+n.dataset+" that this transfer needs")
			continue
		}
		comment(n.host, "")
		allow(n.host, n.missing, n.dataset)
	}
	key := zfs.Work{ZFS: in.Target.ZFS, Ops: []string{zfs.OpSend}, Raw: true}.Permissions()
	if in.Target.Permitted != nil {
		key = in.Target.Permitted.Missing(key, true)
	}
	raw := false
	for _, st := range in.Plan.Streams() {
		raw = raw || st.Send.Flags.Raw
	}
	if raw && len(key) > 0 && in.Target.Name != in.Source.Name {
		// A restricted agent reads the key that must not change from the copy.
		comment(&in.Target, ", only where its key is --append-only")
		allow(&in.Target, key, all[1].dataset)
	}
	return lines
}
