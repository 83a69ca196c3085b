package preflight

import (
	"fmt"

	"zxfer/pkg/finding"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/zfs"
)

// resume tells of receives that were cut off: such a dataset takes no other
// stream until it is resumed or dropped.
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
		f := finding.Finding{Host: in.Target.Name, Severity: finding.Note, Summary: d.Name + " waits for the rest of a receive that was cut off; this transfer resumes it",
			Evidence: "zfs get receive_resume_token " + d.Name}
		if why := discarded[d.Name]; why != "" {
			f.Severity, f.Summary = finding.Warn, d.Name+" waits for the rest of a receive that cannot be resumed: "+why
			f.Remedy = command("zfs", "receive", "-A", d.Name)
		}
		out = append(out, f)
	}
	return out
}

// keyStatus tells of encrypted datasets of the source whose key is not
// loaded: raw streams need none, decrypted ones do.
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
		f := finding.Finding{Host: in.Source.Name, Severity: finding.Note, Summary: "the key of " + d.Name + " is not loaded: it is sent raw, which needs none",
			Evidence: fmt.Sprintf("zfs get keystatus %s: %s", d.Name, d.Get("keystatus")), Remedy: "to read it here: " + command("zfs", "load-key", d.Name)}
		if decrypts[d.Name] {
			f.Severity, f.Summary = finding.Fail, "the key of "+d.Name+" is not loaded, and a decrypted stream needs it"
		}
		out = append(out, f)
	}
	return out
}

// covered finds mounts on or above the mountpoint of the target, or of what
// exists next above it, that are not its own: what arrives does not show
// there.
func covered(in *Input) []finding.Finding {
	if in.Target.System == nil {
		return nil
	}
	at := in.TargetListing.Find(lowestExisting(&in.TargetListing))
	// A dataset that is never mounted only hands its mountpoint down: the top of
	// a pool with the root file system has "/", and canmount=off.
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
	return one(finding.Finding{Host: in.Target.Name, Severity: finding.Warn, Summary: summary, Evidence: "/proc/self/mounts",
		Remedy: command("umount", point) + ", or: " + command("zfs", "set", "mountpoint=none", at.Name)})
}
