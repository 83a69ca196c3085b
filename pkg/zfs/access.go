package zfs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// AccessProperties returns the properties without which the same files mean something else, such as
// acltype, and the properties that restrict a dataset, such as setuid.
func AccessProperties() []string {
	var out []string
	for _, n := range nativeProperties {
		if n.access {
			out = append(out, n.name)
		}
	}
	return out
}

// ListedAccess returns the AccessProperties that all releases have: all except LongnameProperty.
func ListedAccess() []string {
	return slices.DeleteFunc(AccessProperties(), func(name string) bool { return name == LongnameProperty })
}

// Access returns the values of AccessProperties that a copy of the dataset must have. It includes inherited
// values. It omits defaults, and values that grant rights, such as setuid=on.
func (d *Dataset) Access() map[string]string {
	out := map[string]string{}
	for _, name := range AccessProperties() {
		if p := d.Properties[name]; p.explicit() && (Carry{}).Check(d.Type, name, p.Value) == nil {
			out[name] = p.Value
		}
	}
	return out
}

// JoinValues returns values as "a=x, b=y", sorted.
func JoinValues(values map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		words = append(words, name+"="+cutValue(values[name]))
	}
	return strings.Join(words, ", ")
}

// AccessFingerprint returns a text that changes if a property in AccessProperties changes, except
// LongnameProperty.
func (d *Dataset) AccessFingerprint() string {
	var values []string
	for _, name := range ListedAccess() {
		values = append(values, d.Get(name))
	}
	return strings.Join(values, " ")
}

// explicit reports whether a value was set on the dataset or an ancestor. A value of "zfs mount -o" was not.
func (p Property) explicit() bool {
	return p.Local() || p.Source == "received" || strings.HasPrefix(p.Source, "inherited from ")
}

// AccessGaps finds the values of Access that copies lack. A copy that will inherit the value of another one
// does not lack it.
type AccessGaps struct {
	copies map[string]*Dataset          // also ancestors, by name
	given  map[string]map[string]string // values that copies will have, by name
}

// NewAccessGaps returns the gaps of copies. copies also has their ancestors, as far as they are listed, by name.
func NewAccessGaps(copies map[string]*Dataset) *AccessGaps {
	return &AccessGaps{copies: copies, given: map[string]map[string]string{}}
}

// Of returns the values of Access that a copy lacks, except the properties that omit reports. It accepts a copy that
// does not exist. A restriction that the source only inherits does not replace a local value of the copy, such as exec=on.
// Ancestors come before their descendants, because Of assumes that all values that it returned are set.
func (a *AccessGaps) Of(source *Dataset, copied string, omit func(property string) bool) map[string]string {
	lacks := map[string]string{}
	for name, want := range source.Access() {
		inherits := strings.HasPrefix(source.Properties[name].Source, "inherited from ")
		if d := a.copies[copied]; omit(name) || classOf(name) == rights && inherits && d != nil && d.Properties[name].Local() {
			continue
		}
		if have, known := a.expected(copied, name); !known || have != want {
			lacks[name] = want
		}
	}
	a.given[copied] = lacks
	return lacks
}

// expected returns the value that a dataset will have, or false if it is unknown.
func (a *AccessGaps) expected(dataset, name string) (string, bool) {
	if value, given := a.given[dataset][name]; given {
		return value, true
	}
	d, above := a.copies[dataset], ParentOf(dataset)
	whole := d != nil && !d.Inconsistent()
	if whole && (d.Properties[name].Local() || d.Properties[name].Source == "received") || above == "" {
		return d.value(name)
	}
	if value, known := a.expected(above, name); known || !whole {
		return value, known
	}
	return d.value(name)
}

// value returns a property, or false if the dataset is nil or its listing does not have it.
func (d *Dataset) value(name string) (string, bool) {
	if d == nil {
		return "", false
	}
	p, known := d.Properties[name]
	return p.Value, known
}

// SettingsProperty is a user property of a copy. It records more properties of its source (see Settings) than
// OriginProperty, whose form earlier versions know.
const SettingsProperty = "zxfer:settings"

// Settings is the value of SettingsProperty: limits, shares and AccessProperties of a source, by name.
// Another host wrote it, so its values are untrusted.
type Settings map[string]string

// SettingsNames returns the properties that Settings may hold.
func SettingsNames() []string {
	return append([]string{"quota", "refquota", "filesystem_limit", "snapshot_limit", "reservation", "refreservation", "sharenfs", "sharesmb"}, AccessProperties()...)
}

// RestrictingSettings returns the names of the limits in Settings. ZFS enforces each on its dataset alone.
func RestrictingSettings() []string {
	return []string{"quota", "refquota", "filesystem_limit", "snapshot_limit"}
}

// maxSetting is the largest length of a recorded value in bytes.
const maxSetting = 1 << 10

// SettingsOf returns the record for a source dataset. The root's values do not depend on ancestors.
func SettingsOf(d *Dataset, root bool) Settings {
	out := Settings{}
	for _, name := range SettingsNames() {
		p := d.Properties[name]
		set := p.Local() || p.Source == "received" || root && p.explicit()
		if set && Settable(d.Type, name) && d.Get(name) != "" && !Unlimited(name, p.Value) && len(p.Value) <= maxSetting && CheckValue(name, p.Value) == nil {
			out[name] = p.Value
		}
	}
	return out
}

// Source returns a dataset of type t whose Access has the settings.
func (s Settings) Source(t Type) *Dataset {
	d := &Dataset{Type: t, Properties: map[string]Property{}}
	for name, value := range s {
		d.Properties[name] = Property{Value: value, Source: "local"}
	}
	return d
}

// Unlimited reports whether a value means that a limit or share is not set.
func Unlimited(name, value string) bool {
	return classOf(name) == place && (value == "none" || value == "off" || value == "18446744073709551615" || value == "0" && !strings.HasSuffix(name, "_limit"))
}

// Encode returns the value of SettingsProperty, or "" if there are none.
func (s Settings) Encode() string {
	if len(s) == 0 {
		return ""
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(s) != nil || b.Len() > maxOrigin {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ParseSettings parses and checks the value of SettingsProperty.
func ParseSettings(value string) (s Settings, err error) {
	if len(value) > maxOrigin {
		return nil, fmt.Errorf("%s has %d bytes", SettingsProperty, len(value))
	}
	d := json.NewDecoder(strings.NewReader(value))
	if err = d.Decode(&s); err != nil || d.More() {
		return nil, fmt.Errorf("%s has a value that zxfer did not write: %s", SettingsProperty, cutValue(value))
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if !slices.Contains(SettingsNames(), name) {
			delete(s, name) // of a later version
		} else if err := CheckValue(name, s[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", SettingsProperty, err)
		}
	}
	return s, nil
}
