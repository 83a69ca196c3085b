package preflight

import (
	"fmt"
	"strings"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// shownHolds bounds how many commands a remedy lists.
const shownHolds = 5

// holds finds holds of zxfer's jobs that the next transfer to this target does
// not need: a job keeps the newest snapshot that both sides have, and moves
// its hold there when that has arrived.
func holds(in *Input) []finding.Finding {
	if len(in.Holds) == 0 {
		return nil
	}
	there := map[uint64]bool{}
	for _, d := range in.TargetListing.Datasets {
		for _, v := range d.Versions {
			there[v.GUID] = true
		}
	}
	var old, commands []string
	moved := true
	for _, d := range in.SourceListing.Datasets {
		base := -1 // of Versions: the newest that both sides have
		for i, v := range d.Versions {
			if v.Kind == zfs.Snapshot && there[v.GUID] {
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
	if n := len(commands) - shownHolds; n > 0 {
		commands = append(commands[:shownHolds], fmt.Sprintf("and so on for %d more", n))
	}
	f.Remedy = strings.Join(commands, "\n")
	return one(f)
}
