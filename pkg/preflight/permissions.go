package preflight

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/zfs"
)

// permissions notes the command that delegates the plan's permissions to a user who is not
// root. Whether they are delegated already, or /dev/zfs is accessible, is not known here.
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html
func permissions(in *Input) []finding.Finding {
	if in.Plan.Steps() == 0 {
		return nil
	}
	var out []finding.Finding
	ask := func(h Host, dataset string, perms []string) {
		if h.Root || h.User == "" {
			return
		}
		out = append(out, finding.Finding{
			Host: h.Name, Severity: finding.Note,
			Summary:  fmt.Sprintf("%s is not root: it needs ZFS permissions on %s", h.User, dataset),
			Evidence: "effective user " + h.User,
			Remedy:   "as root, once: " + remedy.MarkRoot(delegate(h, dataset, perms)),
		})
	}
	ask(in.Source, in.SourceListing.Root, sendPermissions(in))
	ask(in.Target, nearestExisting(&in.TargetListing), receivePermissions(in))
	return out
}

// delegate returns the command that grants permissions to the user of a host.
func delegate(h Host, dataset string, perms []string) string {
	slices.Sort(perms)
	return remedy.Command("zfs", "allow", "-u", userOf(h), strings.Join(slices.Compact(perms), ","), dataset)
}

// userOf returns the user who needs permissions on a host, or someUser if zxfer runs as root.
func userOf(h Host) string {
	if h.Root || h.User == "" {
		return someUser
	}
	return h.User
}

// someUser is a placeholder for a user name.
const someUser = "USER"

func sendPermissions(in *Input) []string {
	raw, ranges := true, false
	for _, st := range in.Plan.Streams() {
		raw = raw && st.Send.Flags.Raw
		ranges = ranges || len(st.Send.Through) > 0
	}
	// A range places holds while it is sent.
	return []string{sendPermission(in.Source.ZFS, raw, ranges), "hold", "snapshot", "bookmark"}
}

// sendPermission returns the weakest sufficient permission to send: send:raw, which never
// decrypts, if all streams are raw. 2.4.0 does not accept it for ranges (-I).
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.1/module/zfs/zfs_ioctl.c (zfs_secpolicy_send)
func sendPermission(zfsVersion string, raw, ranges bool) string {
	since := zfs.Release{2, 4, 0}
	if ranges {
		since = zfs.Release{2, 4, 1}
	}
	if v, ok := zfs.ParseRelease(zfsVersion); ok && raw && !v.Before(since) {
		return "send:raw"
	}
	return "send"
}

func receivePermissions(in *Input) []string {
	perms := []string{"create", "mount"}
	rollback := false
	for _, d := range in.Plan.Datasets {
		if d.Discard != "" {
			perms = append(perms, "destroy")
		}
		for _, st := range d.Steps {
			if st.Receive.Rollback {
				rollback = true
				perms = append(perms, "rollback", "destroy")
			}
			if st.Kind == plan.Clone {
				perms = append(perms, "clone")
			}
			for name := range st.Receive.Set {
				if zfs.UserProperty(name) {
					name = "userprop"
				}
				perms = append(perms, name)
			}
		}
	}
	return append(perms, ReceivePermission(in.Target.ZFS, rollback))
}

// ReceivePermission returns the weakest sufficient permission to receive: receive:append if
// nothing is rolled back. A user with receive may destroy data by receive -F.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.2/module/zfs/zfs_ioctl.c (zfs_secpolicy_recv)
func ReceivePermission(zfsVersion string, rollback bool) string {
	if v, ok := zfs.ParseRelease(zfsVersion); ok && !rollback && !v.Before(zfs.Release{2, 3, 2}) {
		return "receive:append"
	}
	return "receive"
}

// nearestExisting returns the target or its nearest existing ancestor, on which permissions can
// be granted.
func nearestExisting(l *zfs.Listing) string {
	if n := len(l.Ancestors); len(l.Datasets) == 0 && n > 0 {
		return l.Ancestors[n-1].Name
	}
	return l.Root
}

// Allow returns shell lines for both hosts, each group below a comment that names the host.
// They delegate the plan's permissions to users who are not root. If zxfer runs as root, they
// contain a placeholder for the user.
func Allow(in Input) []string {
	if in.Plan.Steps() == 0 {
		return nil
	}
	top := nearestExisting(&in.TargetListing)
	lines := []string{shellComment(in.Source, ""), delegate(in.Source, in.SourceListing.Root, sendPermissions(&in))}
	if in.Target.Name != in.Source.Name {
		lines = append(lines, shellComment(in.Target, ""))
	}
	perms := receivePermissions(&in)
	if len(in.Plan.ToJoin()) > 0 {
		perms = append(perms, "change-key")
	}
	lines = append(lines, delegate(in.Target, top, perms))
	raw := false
	for _, st := range in.Plan.Streams() {
		raw = raw || st.Send.Flags.Raw
	}
	if raw && in.Target.Name != in.Source.Name {
		// A restricted agent reads the key that must not change from the copy.
		lines = append(lines, shellComment(in.Target, ", only where its key is --append-only"), delegate(in.Target, top, []string{sendPermission(in.Target.ZFS, true, false)}))
	}
	return lines
}

// shellComment returns the comment above the lines for a host.
func shellComment(h Host, when string) string {
	if userOf(h) == someUser {
		when += " (" + someUser + ": the account that zxfer runs as)"
	}
	return "# as root on " + h.Name + when
}
