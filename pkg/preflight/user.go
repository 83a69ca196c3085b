package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// permissions prints the line that delegates what the plan needs to a user
// who is not root. It is only a note: whether it was delegated already, or
// /dev/zfs is open to the user at all, shows when it is tried.
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
			Summary:  fmt.Sprintf("%s is not root: the plan needs permissions on %s", h.User, dataset),
			Evidence: "effective user " + h.User,
			Remedy:   "as root, once: " + delegate(h, dataset, perms),
		})
	}
	ask(in.Source, in.SourceListing.Root, sendPermissions(in))
	ask(in.Target, lowestExisting(&in.TargetListing), receivePermissions(in))
	return out
}

// someUser stands for a user whose name is to be put in.
const someUser = "USER"

// userOf is whom to give permissions on a host: who runs there, or where that is
// root, who needs none, another one.
func userOf(h Host) string {
	if h.Root || h.User == "" {
		return someUser
	}
	return h.User
}

// delegate is the command that gives the user of a host permissions.
func delegate(h Host, dataset string, perms []string) string {
	slices.Sort(perms)
	return command("zfs", "allow", "-u", userOf(h), strings.Join(slices.Compact(perms), ","), dataset)
}

// sendPermission is the least permission by which a ZFS sends: send:raw, which
// never decrypts, where all streams are raw. 2.4.0 does not take it for ranges (-I).
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.1/module/zfs/zfs_ioctl.c (zfs_secpolicy_send)
func sendPermission(zfsVersion string, raw, ranges bool) string {
	since := version{2, 4, 0}
	if ranges {
		since = version{2, 4, 1}
	}
	if v, ok := parseVersion(zfsVersion); ok && raw && !v.before(since) {
		return "send:raw"
	}
	return "send"
}

// ReceivePermission is the least permission by which a ZFS receives: receive:append
// where nothing is rolled back. A user who has receive may destroy by receive -F.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.2/module/zfs/zfs_ioctl.c (zfs_secpolicy_recv)
func ReceivePermission(zfsVersion string, rollback bool) string {
	if v, ok := parseVersion(zfsVersion); ok && !rollback && !v.before(version{2, 3, 2}) {
		return "receive:append"
	}
	return "receive"
}

func sendPermissions(in *Input) []string {
	raw, ranges := true, false
	for _, st := range in.Plan.Streams() {
		raw = raw && st.Send.Flags.Raw
		ranges = ranges || len(st.Send.Through) > 0
	}
	// A range places holds while it is sent.
	return []string{sendPermission(in.Source.ZFS, raw, ranges), "hold", "snapshot", "bookmark"}
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

// lowestExisting is what permissions on a target can be given on: it, or what
// is next above.
func lowestExisting(l *zfs.Listing) string {
	if n := len(l.Ancestors); len(l.Datasets) == 0 && n > 0 {
		return l.Ancestors[n-1].Name
	}
	return l.Root
}

// maxKeys is how many commands to load keys are worth reading.
const maxKeys = 16

// keys notes what arrives encrypted by a key that the target does not know:
// it needs none to receive, but to read. What a raw stream makes is an
// encryption root of its own, unless it takes its key from above in the end.
func keys(in *Input) []finding.Finding {
	var names, roots []string
	there, seen := in.TargetListing.ByName(), map[string]bool{}
	for _, d := range in.Plan.Datasets {
		if !d.Encrypted || len(d.Steps) == 0 {
			continue
		}
		names = append(names, d.Target)
		root := d.Target
		if t := there[d.Target]; t != nil && t.Get("encryptionroot") != "" {
			root = t.Get("encryptionroot")
		}
		root = cmp.Or(d.Joins, root)
		if !seen[root] {
			seen[root], roots = true, append(roots, root)
		}
	}
	if len(names) == 0 {
		return nil
	}
	var open []string
	if top := in.TargetListing.Root; len(roots) > maxKeys {
		open = []string{command("zfs", "load-key", "-r", top)}
	} else {
		for _, r := range roots {
			open = append(open, command("zfs", "load-key", r))
		}
	}
	return []finding.Finding{{
		Host: in.Target.Name, Severity: finding.Note,
		Summary:  "encrypted as on the source: " + finding.Some(names, 1) + "; receiving needs no key, reading needs the source's",
		Evidence: "raw streams (zfs send -w), each of which makes an encryption root of its own; one with the passphrase of what is above it joins that",
		Remedy:   "to read it, on " + in.Target.Name + ": " + strings.Join(open, "; "),
	}}
}

// Allow are lines for a shell of each end, which comments name: the commands that
// delegate what a plan needs to users who are not root, whoever runs it, and with a
// user's name to be put in where that is root.
func Allow(in Input) []string {
	if in.Plan.Steps() == 0 {
		return nil
	}
	top := lowestExisting(&in.TargetListing)
	lines := []string{allowOn(in.Source, ""), delegate(in.Source, in.SourceListing.Root, sendPermissions(&in))}
	if in.Target.Name != in.Source.Name {
		lines = append(lines, allowOn(in.Target, ""))
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
		// Of what it has, a restricted agent reads the key that must stay.
		lines = append(lines, allowOn(in.Target, ", only where its key is --append-only"), delegate(in.Target, top, []string{sendPermission(in.Target.ZFS, true, false)}))
	}
	return lines
}

// allowOn is the comment above what is for a host.
func allowOn(h Host, when string) string {
	if userOf(h) == someUser {
		when += " (" + someUser + ": the account that zxfer runs as)"
	}
	return "# as root on " + h.Name + when
}
