package plan

import (
	"fmt"
	"maps"
	"slices"

	"zxfer/pkg/zfs"
)

// checkProperties refuses -o and -x that no dataset could take.
func (p *planner) checkProperties() {
	bad := func(name, why, hint string) {
		p.conflict(BadProperty, p.req.Source, p.targetRoot, fmt.Sprintf("property %s: %s", name, why), hint)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(p.req.Set)), p.req.Exclude) {
		_, set := p.req.Set[name]
		switch {
		case zfs.CheckProperty(name) != nil:
			bad(name, zfs.CheckProperty(name).Error(), "")
		case set && zfs.ReadOnly(name):
			bad(name, "it is read-only", "leave -o "+name+" out")
		case set && name == "origin":
			bad(name, "the origin is chosen by the plan", "leave -o origin out")
		case zfs.EncryptionBound(name) && p.anyRaw():
			bad(name, "raw streams bring their encryption, which cannot be set or excluded", "leave it out, or use --decrypt")
		}
	}
}

func (p *planner) anyRaw() bool {
	return !p.req.Decrypt && slices.ContainsFunc(p.state.Source.Datasets, (*zfs.Dataset).Encrypted)
}

// receiveProperties returns what a receive sets and excludes. A dataset that
// is there already keeps what it has, but for -o and -x.
func (p *planner) receiveProperties(d *zfs.Dataset, flags zfs.StreamFlags, first bool) (set map[string]string, exclude []string) {
	set = map[string]string{}
	if first {
		// A replica: not mounted over anything, and not changed but by the
		// next increment, which a changed target could not take.
		set["readonly"] = "on"
		if d.Type == zfs.Filesystem {
			set["canmount"] = "noauto"
		}
		set[zfs.FlagsProperty] = flagString(flags)
		for name, v := range d.Properties {
			carried := zfs.ShapesData(name) || p.req.CarryProperties
			if v.Local() && carried && zfs.Carryable(d.Type, name) {
				set[name] = v.Value
			}
		}
	}
	for name, value := range p.req.Set {
		if !zfs.Settable(d.Type, name) {
			if first {
				p.note("%s: -o %s is left out: a %s has no such property", d.Name, name, d.Type)
			}
			continue
		}
		set[name] = value
	}
	for _, name := range p.req.Exclude {
		delete(set, name)
		if zfs.Settable(d.Type, name) && first {
			exclude = append(exclude, name)
		}
	}
	if len(set) == 0 {
		set = nil
	}
	return set, exclude
}
