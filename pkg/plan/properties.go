package plan

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"zxfer/pkg/finding"
	"zxfer/pkg/zfs"
)

// checkProperties refuses -o and -x that no dataset could take.
func (p *planner) checkProperties() bool {
	ok := true
	bad := func(hint, format string, args ...any) {
		ok = false
		p.conflict(BadProperty, p.req.Source, p.targetRoot, hint, format, args...)
	}
	raw := slices.ContainsFunc(p.state.Source.Datasets, p.raw)
	other := p.otherEncryption()
	for _, name := range slices.Sorted(maps.Keys(p.req.Set)) {
		feature := zfs.FeatureOf(name, p.req.Set[name])
		switch {
		case zfs.CheckProperty(name) != nil:
			bad("", "{{set}} %s: %s", name, zfs.CheckProperty(name))
		case zfs.ReadOnly(name):
			bad("leave it out", "{{set}} %s: the property is read-only", name)
		case !zfs.Known(name):
			bad("a property of your own has a colon in its name, such as org.example:note", "{{set}} %s: there is no such property", name)
		case zfs.Fixed(name) && !zfs.EncryptionBound(name):
			bad("leave it out", "{{set}} %s: it comes with the stream and cannot be chosen on arrival", name)
		case zfs.EncryptionBound(name) && raw:
			bad("leave it out, or send decrypted: {{decrypt}}", "{{set}} %s: a raw stream brings its encryption and takes no other", name)
		case zfs.EncryptionBound(name) && other != "" && (name == "encryption" || p.req.Set["encryption"] == ""):
			bad("leave it out", "{{set}} %s: %s exists, and its encryption cannot be changed", name, p.onTarget(other))
		case zfs.CheckValue(name, p.req.Set[name]) != nil:
			bad("", "{{set}} %s", zfs.CheckValue(name, p.req.Set[name]))
		case feature != "" && !p.targetTakes(feature):
			bad(p.state.Target.Pool.Enabling("on "+p.state.TargetHost, feature),
				"{{set}} %s=%s needs the feature %s, which pool %s lacks", name, p.req.Set[name], feature, p.onTarget(p.state.Target.Pool.Name))
		}
	}
	for _, name := range p.req.Exclude {
		switch {
		case zfs.CheckProperty(name) != nil:
			bad("", "{{exclude}} %s: %s", name, zfs.CheckProperty(name))
		case !zfs.Known(name):
			bad("a property of your own has a colon in its name, such as org.example:note", "{{exclude}} %s: there is no such property", name)
		case zfs.EncryptionBound(name) && raw:
			bad("leave it out, or send decrypted: {{decrypt}}", "{{exclude}} %s: a raw stream brings its encryption", name)
		}
	}
	return ok
}

// otherEncryption returns a dataset that the target has, and whose encryption is
// not what Set asks for; "" for none. Where it is, nothing has to be set.
func (p *planner) otherEncryption() string {
	for _, d := range p.state.Source.Datasets {
		name := targetOf(d.Name, p.req.Source, p.targetRoot)
		if p.exists(name) && !p.encryptedAsAsked(p.target[name]) {
			return name
		}
	}
	return ""
}

func (p *planner) encryptedAsAsked(t *zfs.Dataset) bool {
	switch want := p.req.Set["encryption"]; want {
	case "on", "off":
		return t.Encrypted() == (want == "on")
	default:
		return t.Encrypted() && t.Get("encryption") == want
	}
}

// exists tells whether the target holds a dataset, more than a part of one.
func (p *planner) exists(target string) bool {
	t := p.target[target]
	return t != nil && !t.Inconsistent()
}

// newProperties returns what the first receive of a dataset sets. What is
// excluded is simply not set: no stream of ours brings properties by itself.
func (p *planner) newProperties(d *zfs.Dataset, flags zfs.StreamFlags, at place) map[string]string {
	// A replica: not mounted over anything, and not changed but by the next
	// increment, which a changed target could not take.
	set := map[string]string{"readonly": "on", zfs.FlagsProperty: flagString(flags)}
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
	if at.belowReplica && !p.raw(d) {
		// Below an encrypted replica, whose key is not there, only what was
		// not encrypted on the source either can be received.
		set["encryption"] = "off"
	}
	p.carry(d, set, p.req.CarryProperties)
	p.override(d, set)
	if p.req.Restore {
		p.guard(d, set)
	}
	return set
}

// changedProperties returns what a receive into an existing dataset sets:
// only what was asked for.
func (p *planner) changedProperties(d *zfs.Dataset) map[string]string {
	set := map[string]string{}
	if p.req.CarryProperties && !p.req.Restore { // what is there has its own
		p.carry(d, set, true)
	}
	p.override(d, set)
	if out := p.arriving[targetOf(d.Name, p.req.Source, p.targetRoot)]; out != nil && out.Restore != nil && out.Restore.Due {
		p.later(set)
	}
	dropEncryption(set)
	if len(set) == 0 {
		return nil
	}
	return set
}

// dropEncryption leaves out what a dataset has from the begin of its first
// receive: zfs receive refuses to set it later. That it is what was asked for is
// checkProperties' to find out.
func dropEncryption(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return zfs.EncryptionBound(name) })
}

// carry adds what is set on the source: all, or what shapes data.
func (p *planner) carry(d *zfs.Dataset, set map[string]string, all bool) {
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		v := d.Properties[name]
		if !v.Local() && v.Source != "received" || name == zfs.FlagsProperty || name == zfs.RestoreProperty || d.Get(name) == "" {
			continue
		}
		if from := p.left[name]; all && zfs.PlaceBound(name) && !zfs.EncryptionBound(name) && (len(from) == 0 || from[len(from)-1] != d.Name) {
			p.left[name] = append(from, d.Name)
		}
		if !zfs.ShapesData(name) && !all || !zfs.Carryable(d.Type, name) {
			continue
		}
		if !utf8.ValidString(v.Value) || strings.ContainsRune(v.Value, utf8.RuneError) {
			p.note("%s: %s is not carried: its value is not text (UTF-8)", d.Name, name)
			continue
		}
		if f := zfs.FeatureOf(name, v.Value); f != "" && !p.targetTakes(f) {
			p.note("%s: %s=%s is not carried: pool %s lacks the feature %s", d.Name, name, v.Value, p.onTarget(p.state.Target.Pool.Name), f)
			continue
		}
		set[name] = v.Value
	}
}

// leftBehind says what -p does not carry: it belongs to a dataset's place, and
// could mount over, share or fill up the target.
func (p *planner) leftBehind() {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(p.left)) {
		if _, set := p.req.Set[name]; set || p.req.Restore && givenBack(name) || slices.Contains(p.req.Exclude, name) {
			continue
		}
		out = append(out, name+" of "+finding.Some(p.left[name], 1))
	}
	switch {
	case len(out) > 0 && p.req.Restore:
		p.note("what belongs to a dataset's place does not come back: %s; what is wanted is given with {{set}}", strings.Join(out, ", "))
	case len(out) > 0:
		p.note("{{props}} does not carry what belongs to a dataset's place: %s; what is wanted there is given with {{set}}", strings.Join(out, ", "))
	}
}

// override applies Set and Exclude.
func (p *planner) override(d *zfs.Dataset, set map[string]string) {
	for _, name := range p.req.Exclude {
		delete(set, name)
	}
	for _, name := range slices.Sorted(maps.Keys(p.req.Set)) {
		if !zfs.Settable(d.Type, name) {
			p.note("%s: {{set}} %s is left out: a %s has no such property", d.Name, name, d.Type)
			continue
		}
		if name == "mountpoint" && p.req.Restore && d.Name != p.req.Source {
			continue // inherited: all at one path would be mounted over each other
		}
		set[name] = p.req.Set[name]
	}
}
