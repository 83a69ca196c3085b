package plan

import (
	"errors"
	"maps"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/zfs"
)

// checkProperties refuses -o, -x and --carry options that no dataset can take.
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
		case feature != "" && !p.targetSupports(feature):
			bad(p.state.Target.Pool.Enabling("on "+p.state.TargetHost, feature),
				"{{set}} %s=%s needs the feature %s, which pool %s lacks", name, p.req.Set[name], feature, p.onTarget(p.state.Target.Pool.Name))
		}
	}
	for _, name := range p.req.CarryNamed {
		if err := zfs.CheckNamed(name); err != nil {
			bad("set it, if it is wanted there: "+option.Name("set", name+"=VALUE"), "{{carry}} %s", err)
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

// otherEncryption returns a target dataset whose encryption differs from Set, or "".
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

// exists reports whether the target has a fully received dataset of that name.
func (p *planner) exists(target string) bool {
	t := p.target[target]
	return t != nil && !t.Inconsistent()
}

// setNew sets the properties of the first receive of a dataset. Streams of zxfer contain no
// properties, so excluded ones need no action.
func (p *planner) setNew(r *zfs.ReceiveSpec, d *zfs.Dataset, flags zfs.StreamFlags, at parentEncryption) {
	// A copy must not be mounted over anything. A changed copy could not take the next
	// increment.
	set := map[string]string{"readonly": "on", zfs.FlagsProperty: flagString(flags)}
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
	if at.belowRawCopy && !p.raw(d) {
		// Below an encrypted copy whose key is not loaded, ZFS receives only unencrypted
		// datasets.
		set["encryption"] = "off"
	}
	carried := p.carry(d)
	maps.Copy(set, carried)
	p.override(d, set)
	if p.req.Restore {
		p.protect(d, set)
	}
	p.apply(r, set, carried)
}

// setChanged sets the requested properties on a receive into an existing dataset. A restore
// carries none, to keep the administrator's properties.
func (p *planner) setChanged(r *zfs.ReceiveSpec, d *zfs.Dataset) {
	set, carried := map[string]string{}, map[string]string{}
	if p.req.Carries().All && !p.req.Restore {
		carried = p.carry(d)
		maps.Copy(set, carried)
	}
	p.override(d, set)
	if out := p.byTarget[targetOf(d.Name, p.req.Source, p.targetRoot)]; out != nil && out.Restore != nil && out.Restore.Due {
		p.dropPrecautions(set)
	}
	dropEncryption(set)
	if len(set) > 0 {
		p.apply(r, set, carried)
	}
}

// carry returns the source properties to set on the target. It records the skipped ones for
// noteSkipped.
func (p *planner) carry(d *zfs.Dataset) map[string]string {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		v := d.Properties[name]
		if !v.Local() && v.Source != "received" || d.Get(name) == "" {
			continue
		}
		if err := p.req.Carries().Check(d.Type, name, v.Value); err != nil {
			p.skipProperty(d, name, err)
			continue
		}
		if f := zfs.FeatureOf(name, v.Value); f != "" && !p.targetSupports(f) {
			p.note("%s: %s=%s is not carried: pool %s lacks the feature %s", d.Name, name, v.Value, p.onTarget(p.state.Target.Pool.Name), f)
			continue
		}
		out[name] = v.Value
	}
	return out
}

// skipProperty records a source property that is not set, and why.
func (p *planner) skipProperty(d *zfs.Dataset, name string, why error) {
	_, asked := p.req.Set[name]
	if errors.Is(why, zfs.ErrNotRequested) || asked || slices.Contains(p.req.Exclude, name) || p.req.Restore && isPrecaution(name) {
		return
	}
	for _, known := range []error{zfs.ErrPlace, zfs.ErrRights, zfs.ErrReserved, zfs.ErrNotNamed, zfs.ErrUnknown} {
		if errors.Is(why, known) {
			p.skipped[known] = append(p.skipped[known], skippedProperty{name, d.Name})
			return
		}
	}
	p.skipped[errInvalidValue] = append(p.skipped[errInvalidValue], skippedProperty{name, d.Name})
}

// skippedProperty is a property of a source dataset that is not set on the target.
type skippedProperty struct{ property, of string }

var errInvalidValue = errors.New("the value is not one that may be set")

// noteSkipped notes the source properties that are not set, and how the administrator can set
// them.
func (p *planner) noteSkipped() {
	set := "; to set one there: " + option.Name("set", "NAME=VALUE")
	for _, reason := range []struct {
		why  error
		text string
	}{
		{zfs.ErrPlace, "they belong to the dataset's place" + set},
		{zfs.ErrRights, "they can grant rights to programs or devices" + set},
		{zfs.ErrReserved, "zxfer or systemd acts on them" + set},
		{zfs.ErrNotNamed, "nobody on the receiving side named them; to carry one: " + option.Name("carry", "NAME")},
		{zfs.ErrUnknown, "this version of zxfer does not know them"},
		{errInvalidValue, "their values are not valid, or not one printable line of text (UTF-8)"},
	} {
		have := map[string][]string{}
		for _, l := range p.skipped[reason.why] {
			if of := have[l.property]; len(of) == 0 || of[len(of)-1] != l.of {
				have[l.property] = append(of, l.of)
			}
		}
		var out []string
		for _, name := range slices.Sorted(maps.Keys(have)) {
			out = append(out, name+" of "+finding.Some(have[name], 1))
		}
		if len(out) > 0 {
			p.note("not set on the target: %s: %s", finding.Some(out, maxSkipped), reason.text)
		}
	}
}

// maxSkipped is the maximum number of properties in a note; a source may have any number.
const maxSkipped = 20

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
			continue // inherited: otherwise all would mount over each other
		}
		set[name] = p.req.Set[name]
	}
}

// apply sets the properties of a receive, and records those whose value the source chose.
func (p *planner) apply(r *zfs.ReceiveSpec, set, carried map[string]string) {
	r.Set = set
	for _, name := range slices.Sorted(maps.Keys(carried)) {
		if _, asked := p.req.Set[name]; !asked && set[name] == carried[name] {
			r.Carried, r.Carry = append(r.Carried, name), p.req.Carries()
		}
	}
}

// dropEncryption removes encryption properties, which zfs receive sets only on new datasets.
// checkProperties has compared them with existing ones.
func dropEncryption(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return zfs.EncryptionBound(name) })
}
