package preflight

import (
	"fmt"

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
		Remedy: command("umount", point) + ", or: " + command("zfs", "set", "mountpoint=none", at.Name)})
}
