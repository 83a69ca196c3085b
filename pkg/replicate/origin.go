package replicate

import (
	"maps"
	"slices"

	"zxfer/pkg/zfs"
)

// SettingsOf returns the settings to record of a source dataset, without properties that the target excludes or
// sets itself.
func (t *Target) SettingsOf(d *zfs.Dataset, root bool) zfs.Settings {
	s := zfs.SettingsOf(d, root)
	maps.DeleteFunc(s, func(name, _ string) bool {
		_, own := t.Properties.Set[name]
		return own || slices.Contains(t.Properties.Exclude, name)
	})
	return s
}

// Recorded returns the records of the source on a copy. ok is false without a record of OriginProperty.
func Recorded(d *zfs.Dataset) (o zfs.Origin, ok bool, err error) {
	if p := d.Properties[zfs.OriginProperty]; p.Local() {
		o, err = zfs.ParseOrigin(p.Value)
		ok = err == nil
	}
	if p := d.Properties[zfs.SettingsProperty]; p.Local() && err == nil {
		o.Settings, err = zfs.ParseSettings(p.Value)
	}
	return o, ok && err == nil, err
}

// RecordChange returns the change of the records on a copy, or nil if they are up to date. origin and settings are
// the values to record, "" = none. A value that cannot be recorded is not changed.
func RecordChange(copied *zfs.Dataset, origin, settings string) *zfs.PropertyChange {
	c := zfs.PropertyChange{Dataset: copied.Name, Set: map[string]string{}}
	for _, r := range []struct {
		name, want string
		check      func(string) error
	}{
		{zfs.OriginProperty, origin, func(s string) error { _, err := zfs.ParseOrigin(s); return err }},
		{zfs.SettingsProperty, settings, func(s string) error { _, err := zfs.ParseSettings(s); return err }},
	} {
		was := ""
		if p := copied.Properties[r.name]; p.Local() {
			was = p.Value
		}
		switch {
		case was == r.want:
		case r.want == "":
			c.Revert = append(c.Revert, r.name)
		case r.check(r.want) == nil:
			c.Set[r.name] = r.want
		}
	}
	if len(c.Set)+len(c.Revert) == 0 {
		return nil
	}
	return &c
}
