package plan

import (
	"errors"
	"maps"
	"slices"

	"zxfer/pkg/finding"
	"zxfer/pkg/option"
	"zxfer/pkg/zfs"
)

// properties determines the properties that a receive sets.
type properties struct {
	*findings
	access  *zfs.AccessGaps
	skipped map[error][]skippedProperty // source properties that are not set, by reason
}

// check refuses -o, -x and --carry options that no dataset can take.
func (s *properties) check() bool {
	ok := true
	bad := func(hint, format string, args ...any) {
		ok = false
		s.conflict(BadProperty, s.req.Source, s.targetRoot, hint, format, args...)
	}
	raw := slices.ContainsFunc(s.state.Source.Datasets, s.raw)
	other := s.otherEncryption()
	for _, name := range slices.Sorted(maps.Keys(s.req.Set)) {
		feature := zfs.FeatureOf(name, s.req.Set[name])
		switch {
		case zfs.CheckProperty(name) != nil:
			bad("", "{{set}} %s: %s", name, zfs.CheckProperty(name))
		case zfs.ReadOnly(name):
			bad("omit it", "{{set}} %s: the property is read-only", name)
		case !zfs.KnownProperty(name):
			bad("name a user property with a colon, such as org.example:note", "{{set}} %s: there is no such property", name)
		case zfs.FixedAtCreation(name) && !zfs.EncryptionBound(name):
			bad("omit it", "{{set}} %s: the stream sets it, and the target cannot override it", name)
		case zfs.EncryptionBound(name) && raw:
			bad("omit it, or send decrypted: {{decrypt}}", "{{set}} %s: a raw stream brings its own encryption", name)
		case zfs.EncryptionBound(name) && other != "" && (name == "encryption" || s.req.Set["encryption"] == ""):
			bad("omit it", "{{set}} %s: %s exists, and its encryption cannot be changed", name, s.onTarget(other))
		case zfs.CheckValue(name, s.req.Set[name]) != nil:
			bad("", "{{set}} %s", zfs.CheckValue(name, s.req.Set[name]))
		case feature != "" && !s.targetSupports(feature):
			bad(s.state.Target.Pool.FeatureHint(s.state.TargetAt, "on "+s.state.TargetHost, feature),
				"{{set}} %s=%s needs the feature %s, which pool %s lacks", name, s.req.Set[name], feature, s.onTarget(s.state.Target.Pool.Name))
		}
	}
	for _, name := range s.req.CarryNamed {
		if err := zfs.CheckNamed(name); err != nil {
			bad("to set it there: "+option.Name("set", name+"=VALUE"), "{{carry}} %s", err)
		}
	}
	for _, name := range s.req.Exclude {
		switch {
		case zfs.CheckProperty(name) != nil:
			bad("", "{{exclude}} %s: %s", name, zfs.CheckProperty(name))
		case !zfs.KnownProperty(name):
			bad("name a user property with a colon, such as org.example:note", "{{exclude}} %s: there is no such property", name)
		case zfs.EncryptionBound(name) && raw:
			bad("omit it, or send decrypted: {{decrypt}}", "{{exclude}} %s: a raw stream brings its encryption", name)
		}
	}
	return ok
}

// otherEncryption returns a target dataset whose encryption differs from Set, or "".
func (s *properties) otherEncryption() string {
	for _, d := range s.state.Source.Datasets {
		name := targetOf(d.Name, s.req.Source, s.targetRoot)
		if s.exists(name) && !s.encryptedAsAsked(s.target[name]) {
			return name
		}
	}
	return ""
}

func (v *view) encryptedAsAsked(t *zfs.Dataset) bool {
	switch want := v.req.Set["encryption"]; want {
	case "on", "off":
		return t.Encrypted() == (want == "on")
	default:
		return t.Encrypted() && t.Get("encryption") == want
	}
}

// setNew sets the properties of the first receive of a dataset. Streams of zxfer contain no
// properties, so excluded ones need no action.
func (s *properties) setNew(r *zfs.ReceiveSpec, d *zfs.Dataset, flags zfs.StreamFlags, at parentEncryption, out *Dataset) {
	// A copy must not be mounted over anything. A changed copy could not take the next
	// increment.
	set := map[string]string{"readonly": "on", zfs.FlagsProperty: flagString(flags)}
	if d.Type == zfs.Filesystem {
		set["canmount"] = "noauto"
	}
	if at.belowRawCopy && !s.raw(d) {
		// Below an encrypted copy whose key is not loaded, ZFS receives only unencrypted
		// datasets.
		set["encryption"] = "off"
	}
	carried := s.carry(d)
	maps.Copy(carried, s.lacking(d, out.Target))
	maps.Copy(set, carried)
	s.override(d, set)
	if s.req.Restore {
		protect(d, set)
	}
	if d.GUID != 0 {
		set[zfs.DirectionProperty] = zfs.Direction{From: d.GUID}.String()
	}
	s.apply(r, set, carried, out)
}

// setChanged sets the requested properties on a receive into an existing dataset. A restore
// carries none, to keep the administrator's properties.
func (s *properties) setChanged(r *zfs.ReceiveSpec, d *zfs.Dataset, out *Dataset) {
	set, carried := map[string]string{}, map[string]string{}
	if s.req.Carries().All && !s.req.Restore {
		carried = s.carry(d)
	}
	maps.Copy(set, carried)
	s.override(d, set)
	if out.Restore != nil && out.Restore.Due {
		dropPrecautions(set)
	}
	dropEncryption(set)
	if len(set) > 0 {
		s.apply(r, set, carried, out)
	}
}

// lacking returns the values of zfs.Dataset.Access that the target lacks.
func (s *properties) lacking(d *zfs.Dataset, target string) map[string]string {
	set := s.access.Of(d, target, func(name string) bool {
		_, asked := s.req.Set[name]
		return asked || slices.Contains(s.req.Exclude, name)
	})
	t := s.target[target]
	maps.DeleteFunc(set, func(name, value string) bool {
		locked := name == zfs.LongnameProperty && s.raw(d) && (t == nil || !t.KeyLoaded())
		if locked {
			s.note("%s: %s=%s is not set while the key is not loaded", s.onTarget(target), name, value)
		}
		return locked || s.lacksFeature(d, name, value)
	})
	return set
}

// setLacking plans to set the values of zfs.Dataset.Access that an existing copy lacks.
func (s *properties) setLacking(d *zfs.Dataset, out *Dataset) {
	if s.req.Restore {
		return
	}
	set := s.lacking(d, out.Target)
	if len(set) == 0 {
		return
	}
	if out.SetAfter == nil {
		out.SetAfter = map[string]string{}
	}
	maps.Copy(out.SetAfter, set)
	s.note("%s lacks %s of its source, which is set", s.onTarget(out.Target), zfs.JoinValues(set))
}

// lacksFeature reports whether the target's pool lacks the feature for a property, with a note.
func (s *properties) lacksFeature(d *zfs.Dataset, name, value string) bool {
	f := zfs.FeatureOf(name, value)
	if f == "" || s.targetSupports(f) {
		return false
	}
	s.note("%s: %s=%s is not transferred: pool %s lacks the feature %s", d.Name, name, value, s.onTarget(s.state.Target.Pool.Name), f)
	return true
}

// carry returns the source properties to set on the target. It records the skipped ones for
// noteSkipped.
func (s *properties) carry(d *zfs.Dataset) map[string]string {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(d.Properties)) {
		v := d.Properties[name]
		if !v.Local() && v.Source != "received" || d.Get(name) == "" && !zfs.UserProperty(name) {
			continue
		}
		if err := s.req.Carries().Check(d.Type, name, v.Value); err != nil {
			s.skipProperty(d, name, err)
			continue
		}
		byDefault := slices.Contains(zfs.AccessProperties(), name) // lacking returns it
		if !byDefault && !s.lacksFeature(d, name, v.Value) || byDefault && s.req.Carries().All && name != zfs.LongnameProperty {
			out[name] = v.Value
		}
	}
	return out
}

// skipProperty records a source property that is not set, and why.
func (s *properties) skipProperty(d *zfs.Dataset, name string, why error) {
	_, asked := s.req.Set[name]
	if errors.Is(why, zfs.ErrNotRequested) || asked || slices.Contains(s.req.Exclude, name) || s.req.Restore && isPrecaution(name) {
		return
	}
	for _, known := range []error{zfs.ErrLocation, zfs.ErrPrivileges, zfs.ErrReserved, zfs.ErrNotNamed, zfs.ErrUnknown} {
		if errors.Is(why, known) {
			s.skipped[known] = append(s.skipped[known], skippedProperty{name, d.Name})
			return
		}
	}
	s.skipped[errInvalidValue] = append(s.skipped[errInvalidValue], skippedProperty{name, d.Name})
}

// skippedProperty is a property of a source dataset that is not set on the target.
type skippedProperty struct{ property, of string }

var errInvalidValue = errors.New("the value cannot be set")

// noteSkipped notes the source properties that are not set, and how the administrator can set
// them.
func (s *properties) noteSkipped() {
	set := "; to set one there: " + option.Name("set", "NAME=VALUE")
	for _, reason := range []struct {
		why  error
		text string
	}{
		{zfs.ErrLocation, "they depend on the dataset's location" + set},
		{zfs.ErrPrivileges, "they can grant rights to programs or devices" + set},
		{zfs.ErrReserved, "zxfer or systemd acts on them" + set},
		{zfs.ErrNotNamed, "the receiving side did not request them; to transfer one: " + option.Name("carry", "NAME")},
		{zfs.ErrUnknown, "this version of zxfer does not know them"},
		{errInvalidValue, "their values are invalid, or not one printable line of UTF-8"},
	} {
		have := map[string][]string{}
		for _, l := range s.skipped[reason.why] {
			if of := have[l.property]; len(of) == 0 || of[len(of)-1] != l.of {
				have[l.property] = append(of, l.of)
			}
		}
		var out []string
		for _, name := range slices.Sorted(maps.Keys(have)) {
			out = append(out, name+" of "+finding.JoinFirst(have[name], 1))
		}
		if len(out) > 0 {
			s.note("not set on the target: %s: %s", finding.JoinFirst(out, maxSkipped), reason.text)
		}
	}
}

// maxSkipped is the maximum number of properties in a note; a source may have any number.
const maxSkipped = 20

// override applies Set and Exclude.
func (s *properties) override(d *zfs.Dataset, set map[string]string) {
	for _, name := range s.req.Exclude {
		delete(set, name)
	}
	for _, name := range slices.Sorted(maps.Keys(s.req.Set)) {
		if !zfs.Settable(d.Type, name) {
			s.note("%s: {{set}} %s is ignored: a %s has no such property", d.Name, name, d.Type)
			continue
		}
		if name == "mountpoint" && s.req.Restore && d.Name != s.req.Source {
			continue // inherited: otherwise all would mount over each other
		}
		set[name] = s.req.Set[name]
	}
}

// apply sets the properties of a receive, and records those whose value the source chose.
func (s *properties) apply(r *zfs.ReceiveSpec, set, carried map[string]string, out *Dataset) {
	if value, any := set[zfs.LongnameProperty]; any { // zfs receive cannot set it
		delete(set, zfs.LongnameProperty)
		out.SetAfter = map[string]string{zfs.LongnameProperty: value}
	}
	r.Set = set
	for _, name := range slices.Sorted(maps.Keys(carried)) {
		if _, asked := s.req.Set[name]; !asked && set[name] == carried[name] {
			r.Carried, r.Carry = append(r.Carried, name), s.req.Carries()
		}
	}
}

// dropEncryption removes encryption properties, which zfs receive sets only on new datasets. check
// has compared them with existing ones.
func dropEncryption(set map[string]string) {
	maps.DeleteFunc(set, func(name, _ string) bool { return zfs.EncryptionBound(name) })
}
