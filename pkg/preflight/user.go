package preflight

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// permissions prints the line that delegates what the plan needs to a user
// who is not root. It is only a note: whether it was delegated already, or
// /dev/zfs is open to the user at all, shows when it is tried.
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/8/zfs-allow.8.html
func permissions(in *Input) []Finding {
	if in.Plan.Steps() == 0 {
		return nil
	}
	var out []Finding
	ask := func(h Host, dataset string, perms []string) {
		if h.Root || h.User == "" {
			return
		}
		slices.Sort(perms)
		out = append(out, Finding{
			Host: h.Name, Severity: Note,
			Summary:  fmt.Sprintf("%s is not root: the plan needs permissions on %s", h.User, dataset),
			Evidence: "effective user " + h.User,
			Remedy:   "as root, once: " + command("zfs", "allow", "-u", h.User, strings.Join(slices.Compact(perms), ","), dataset),
		})
	}
	// A range (-I) places holds while it is sent.
	ask(in.Source, in.SourceListing.Root, []string{"send", "hold", "snapshot", "bookmark"})
	ask(in.Target, lowestExisting(&in.TargetListing), receivePermissions(&in.Plan))
	return out
}

func receivePermissions(p *plan.Plan) []string {
	perms := []string{"receive", "create", "mount"}
	for _, d := range p.Datasets {
		if d.Discard != "" {
			perms = append(perms, "destroy")
		}
		for _, st := range d.Steps {
			if st.Receive.Rollback {
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
	return perms
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
// encryption root of its own, whatever it was on the source.
func keys(in *Input) []Finding {
	var names, roots []string
	for _, d := range in.Plan.Datasets {
		if !d.Encrypted || len(d.Steps) == 0 {
			continue
		}
		names = append(names, d.Target)
		root := d.Target
		if t := in.TargetListing.Find(d.Target); t != nil && t.Get("encryptionroot") != "" {
			root = t.Get("encryptionroot")
		}
		if !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	if len(names) == 0 {
		return nil
	}
	what := names[0]
	if more := len(names) - 1; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	var open []string
	if top := in.TargetListing.Root; len(roots) > maxKeys {
		open = []string{command("zfs", "load-key", "-r", top)}
	} else {
		for _, r := range roots {
			open = append(open, command("zfs", "load-key", r))
		}
	}
	return []Finding{{
		Host: in.Target.Name, Severity: Note,
		Summary:  what + " will be as encrypted as on the source: no key is needed to receive, the source's to read",
		Evidence: "raw streams (zfs send -w), each of which makes an encryption root of its own",
		Remedy:   "to read it, on " + in.Target.Name + ": " + strings.Join(open, " && "),
	}}
}

// Allow are the commands that delegate what a plan needs to users who are not
// root, for both ends: whoever runs it, and with a user's name to be put in
// where that is root.
func Allow(in Input) []string {
	if in.Plan.Steps() == 0 {
		return nil
	}
	line := func(h Host, dataset string, perms []string) string {
		user := h.User
		if h.Root || user == "" {
			user = "USER"
		}
		slices.Sort(perms)
		return "on " + h.Name + ": " + command("zfs", "allow", "-u", user, strings.Join(slices.Compact(perms), ","), dataset)
	}
	return []string{
		line(in.Source, in.SourceListing.Root, []string{"send", "hold", "snapshot", "bookmark"}),
		line(in.Target, lowestExisting(&in.TargetListing), receivePermissions(&in.Plan)),
	}
}
