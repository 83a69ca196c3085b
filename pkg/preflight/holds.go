package preflight

import (
	"fmt"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

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
		Summary:  "holds of zxfer's jobs keep what this target does not need: " + finding.Some(old, 3),
		Evidence: "zfs holds; the newest snapshot that both sides have is a later one",
	}
	if !moved {
		f.Summary += "; another target may"
	}
	if n := len(commands) - maxHolds; n > 0 {
		commands = append(commands[:maxHolds], fmt.Sprintf("and so on for %d more", n))
	}
	f.Remedy = strings.Join(commands, "\n")
	return findings(f)
}
