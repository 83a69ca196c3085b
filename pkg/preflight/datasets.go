package preflight

import (
	"cmp"
	"fmt"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// resume notes interrupted receives. Such a dataset accepts no other stream until it is resumed
// or discarded.
func resume(in *Input) []finding.Finding {
	discarded := map[string]string{}
	for _, p := range in.Plan.Datasets {
		discarded[p.Target] = p.Discard
	}
	var out []finding.Finding
	for _, d := range in.TargetListing.Datasets {
		if d.ResumeToken() == "" {
			continue
		}
		f := finding.Finding{Host: in.Target.Name, Severity: finding.Note, Summary: d.Name + " has the state of an interrupted receive; this transfer resumes it",
			Evidence: "zfs get receive_resume_token " + d.Name}
		if why := discarded[d.Name]; why != "" {
			f.Severity, f.Summary = finding.Warn, d.Name+" has the state of an interrupted receive that cannot be resumed: "+why
			f.Remedy = command("zfs", "receive", "-A", d.Name)
		}
		out = append(out, f)
	}
	return out
}

// mountedOver finds foreign mounts on the mountpoint of the target or of its nearest existing
// ancestor, where received data would not be visible.
func mountedOver(in *Input) []finding.Finding {
	if in.Target.System == nil {
		return nil
	}
	at := in.TargetListing.Find(nearestExisting(&in.TargetListing))
	// A dataset that is never mounted only passes its mountpoint on: the top of a pool with the
	// root filesystem has "/" and canmount=off.
	if at == nil || at.Type != zfs.Filesystem || at.Get("canmount") == "off" {
		return nil
	}
	point := at.Get("mountpoint")
	var last sysinfo.Mount
	own := false
	for _, m := range in.Target.System.Mounts {
		if m.Point == point {
			last = m
			own = own || m.Device == at.Name
		}
	}
	if last.Device == "" || last.Device == at.Name {
		return nil
	}
	summary := fmt.Sprintf("%s is mounted at %s, the mountpoint of %s", last.Device, point, at.Name)
	if own {
		summary += ", which it hides"
	}
	return findings(finding.Finding{Host: in.Target.Name, Severity: finding.Warn, Summary: summary, Evidence: "/proc/self/mounts",
		Remedy: command("umount", point) + "\nor: " + command("zfs", "set", "mountpoint=none", at.Name)})
}

// keys notes datasets that arrive encrypted with a key unknown to the target. Receiving needs
// no key, but reading does. A raw stream creates an encryption root, unless the dataset
// inherits its key at the end.
func keys(in *Input) []finding.Finding {
	var names, roots []string
	targets, seen := in.TargetListing.ByName(), map[string]bool{}
	for _, d := range in.Plan.Datasets {
		if !d.Encrypted || len(d.Steps) == 0 {
			continue
		}
		names = append(names, d.Target)
		root := d.Target
		if t := targets[d.Target]; t != nil && t.Get("encryptionroot") != "" {
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
		open = []string{in.Target.At.Prompt("zfs", "load-key", "-r", top)}
	} else {
		for _, r := range roots {
			open = append(open, in.Target.At.Prompt("zfs", "load-key", r))
		}
	}
	return []finding.Finding{{
		Host: in.Target.Name, Severity: finding.Note,
		Summary:  "encrypted as on the source: " + finding.JoinFirst(names, 1) + "; receiving needs no key, reading needs the key of the source",
		Evidence: "raw streams (zfs send -w), each of which creates an encryption root; a dataset with its parent's passphrase joins the parent's",
		Remedy:   "to read it: " + strings.Join(open, "; "),
	}}
}

// maxKeys is the maximum number of load-key commands in a remedy.
const maxKeys = 16

// keyStatus notes encrypted source datasets whose key is not loaded. Only decrypted streams
// need the key.
func keyStatus(in *Input) []finding.Finding {
	decrypts := map[string]bool{}
	for d, st := range in.Plan.Streams() {
		decrypts[d.Source] = decrypts[d.Source] || !st.Send.Flags.Raw
	}
	var out []finding.Finding
	for _, d := range in.SourceListing.Datasets {
		if !d.Encrypted() || d.KeyLoaded() {
			continue
		}
		f := finding.Finding{Host: in.Source.Name, Severity: finding.Note, Summary: "the key of " + d.Name + " is not loaded: zxfer sends it raw, which needs no key",
			Evidence: fmt.Sprintf("zfs get keystatus %s: %s", d.Name, d.Get("keystatus")), Remedy: "to read it there: " + in.Source.At.Prompt("zfs", "load-key", d.Name)}
		if decrypts[d.Name] {
			f.Severity, f.Summary = finding.Fail, "the key of "+d.Name+" is not loaded, but a decrypted stream requires it"
		}
		out = append(out, f)
	}
	return out
}

// maxHolds limits the commands in a remedy.
const maxHolds = 5

// holds finds holds of zxfer's jobs that the next transfer to this target does not need. A job
// needs only the hold on the most recent common snapshot, and moves it when a newer one has
// arrived.
func holds(in *Input) []finding.Finding {
	if len(in.Holds) == 0 {
		return nil
	}
	targets := map[uint64]bool{}
	for _, d := range in.TargetListing.Datasets {
		for _, v := range d.Versions {
			targets[v.GUID] = true
		}
	}
	var old, commands []string
	moved := true
	for _, d := range in.SourceListing.Datasets {
		base := -1 // index of the most recent common snapshot
		for i, v := range d.Versions {
			if v.Kind == zfs.Snapshot && targets[v.GUID] {
				base = i
			}
		}
		newer := map[string]bool{} // tags that a newer snapshot has too
		for i := len(d.Versions) - 1; i >= 0; i-- {
			name := d.Versions[i].In(d.Name)
			for _, tag := range in.Holds[name] {
				if !strings.HasPrefix(tag, zfs.TagPrefix) {
					continue
				}
				if i < base {
					old = append(old, name)
					commands = append(commands, command("zfs", "release", tag, name))
					moved = moved && newer[tag]
				}
				newer[tag] = true
			}
		}
	}
	if len(old) == 0 {
		return nil
	}
	f := finding.Finding{Host: in.Source.Name, Severity: finding.Note,
		Summary:  "holds of jobs keep snapshots that this target does not need: " + finding.JoinFirst(old, 3),
		Evidence: "zfs holds; the most recent common snapshot is a later one",
	}
	if !moved {
		f.Summary += "; another target may need them"
	}
	if n := len(commands) - maxHolds; n > 0 {
		commands = append(commands[:maxHolds], fmt.Sprintf("and %d more", n))
	}
	f.Remedy = strings.Join(commands, "\n")
	return findings(f)
}
