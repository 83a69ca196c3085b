package zfs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RoleProperty is a user property of the root of a job's source or copy. It records that a fail over
// changed its role. Only a local value counts, and it also applies to the descendants.
const RoleProperty = "zxfer:role"

// OriginProperty is a user property of a copy. It records the properties that the copy needs to
// take over the source's role (see Origin).
const OriginProperty = "zxfer:origin"

// RoleKind is the role of a dataset in a job.
type RoleKind string

const (
	// RoleSource is a copy that became the source: no stream may be received into it.
	RoleSource RoleKind = "source"
	// RoleHandover is a source that is being replaced by its copy. It is read-only.
	RoleHandover RoleKind = "handover"
	// RoleStandby is a former source that became a copy.
	RoleStandby RoleKind = "standby"
)

// Role is the value of RoleProperty. The zero Role means that no fail over changed the role.
type Role struct {
	Kind RoleKind
	// ID identifies the fail over: 16 hexadecimal digits. Both sides of a pair have the same.
	ID string
	// Before is the ID of the role that this one replaces, "" if there was none.
	Before string
	// Job and Target name the job whose roles changed.
	Job, Target string
	Since       time.Time // whole seconds
}

// String returns the value of RoleProperty.
func (r Role) String() string {
	return fmt.Sprintf("%s %s %s %s %s %d", r.Kind, r.ID, cmp.Or(r.Before, "-"), r.Job, r.Target, r.Since.Unix())
}

// Receives reports whether streams may be received into the dataset.
func (r Role) Receives() bool { return r.Kind == "" || r.Kind == RoleStandby }

// Describe returns the origin of the role for messages.
func (r Role) Describe() string {
	return fmt.Sprintf("by job %q, target %q, on %s", r.Job, r.Target, r.Since.UTC().Format("2006-01-02 15:04:05 MST"))
}

// ParseRole parses the value of RoleProperty. It accepts only values that String returns.
func ParseRole(value string) (r Role, err error) {
	fields := strings.Split(value, " ")
	invalid := fmt.Errorf("%s has a value that zxfer did not write: %s", RoleProperty, cutValue(value))
	if len(fields) != 6 {
		return r, invalid
	}
	seconds, err := strconv.ParseInt(fields[5], 10, 64)
	r = Role{RoleKind(fields[0]), fields[1], strings.TrimPrefix(fields[2], "-"), fields[3], fields[4], time.Unix(seconds, 0)}
	known := r.Kind == RoleSource || r.Kind == RoleHandover || r.Kind == RoleStandby
	if err != nil || !known || !isRoleID(r.ID) || r.Before != "" && !isRoleID(r.Before) || !isRoleName(r.Job) || !isRoleName(r.Target) || seconds < 0 || seconds >= 1<<38 || r.String() != value {
		return Role{}, invalid
	}
	return r, nil
}

func isRoleID(s string) bool { return len(s) == 16 && strings.Trim(s, "0123456789abcdef") == "" }

// isRoleName reports whether s has the form of the name of a job or target. In a hint, it cannot be a flag.
func isRoleName(s string) bool { return roleName.MatchString(s) }

var roleName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// RoleIn returns the role in the properties of one dataset, the zero Role if it sets no
// role itself. An invalid value is an error.
func RoleIn(properties map[string]Property) (Role, error) {
	p := properties[RoleProperty]
	if !p.Local() {
		return Role{}, nil
	}
	return ParseRole(p.Value)
}

// RoleOf returns the role that applies to a dataset: its own, or the one of its nearest ancestor
// that has one. at is the dataset that has it. of returns the properties of a dataset, nil if they
// are unknown.
func RoleOf(dataset string, of func(name string) map[string]Property) (at string, r Role, err error) {
	for name := dataset; name != ""; name = ParentOf(name) {
		properties := of(name)
		if r, err = RoleIn(properties); r.Kind != "" || err != nil {
			return name, r, err
		}
		p := properties[RoleProperty]
		if above, inherits := strings.CutPrefix(p.Source, "inherited from "); inherits && of(above) == nil {
			r, err = ParseRole(p.Value)
			return above, r, err
		}
	}
	return "", Role{}, nil
}

// RolesBelow returns the query whose answer SourceIn takes.
func RolesBelow(dataset string) ListQuery {
	return ListQuery{Dataset: dataset, Recursive: true, NoAncestors: true, Identity: true, User: []string{RoleProperty}}
}

// SourceIn returns the first listed dataset with a local role that receives no streams, or "" if there
// is none. Operations that move or destroy a dataset with its descendants must refuse then.
func SourceIn(l *Listing) (at string, r Role, err error) {
	for _, d := range l.Datasets {
		if r, err = RoleIn(d.Properties); err != nil {
			return d.Name, r, fmt.Errorf("%s: %w", d.Name, err)
		}
		if !r.Receives() {
			return d.Name, r, nil
		}
	}
	return "", Role{}, nil
}

// sourceWithin returns why listed datasets must not be moved, or "" if no dataset became the source.
func sourceWithin(l *Listing) string {
	switch at, r, err := SourceIn(l); {
	case err != nil:
		return err.Error()
	case at != "":
		return fmt.Sprintf("%s became the source %s", at, r.Describe())
	}
	return ""
}

// Origin is the value of OriginProperty. Another host wrote it, so its values are untrusted.
type Origin struct {
	// Job, Target and Source are set on the root of a copy: the job, its target, and its source as
	// the job file names it. Host is the name of the source's host.
	Job    string `json:"job,omitempty"`
	Target string `json:"target,omitempty"`
	Source string `json:"source,omitempty"`
	Host   string `json:"host,omitempty"`
	// Settings are recorded in SettingsProperty.
	Settings Settings `json:"-"`
	// Set holds mountpoint, canmount and readonly of the source. Properties that a descendant
	// inherits or that have their default are missing.
	Set map[string]string `json:"set,omitempty"`
}

// maxOrigin is the largest length of OriginProperty in bytes. A mountpoint has at most 4096.
const maxOrigin = 6 << 10

// OriginOf returns the record for a source dataset. The root's values do not depend on ancestors.
func OriginOf(d *Dataset, root bool) Origin {
	o := Origin{Set: map[string]string{}, Settings: SettingsOf(d, root)}
	for _, name := range OriginProperties() {
		p := d.Properties[name]
		set := root && name != "canmount" || p.Source == "local" || p.Source == "received"
		if !set || !Settable(d.Type, name) || d.Get(name) == "" || name == "canmount" && p.Value == "on" || CheckValue(name, p.Value) != nil {
			continue
		}
		o.Set[name] = p.Value
	}
	return o
}

// OriginProperties returns the properties that Origin.Set may hold.
func OriginProperties() []string { return []string{"mountpoint", "canmount", "readonly"} }

// Encode returns the value of OriginProperty, or "" if the record is too long.
func (o Origin) Encode() string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(o) != nil || b.Len() > maxOrigin {
		return ""
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// ParseOrigin parses and checks the value of OriginProperty.
func ParseOrigin(value string) (o Origin, err error) {
	if len(value) > maxOrigin {
		return o, fmt.Errorf("%s has %d bytes", OriginProperty, len(value))
	}
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err = d.Decode(&o); err != nil || d.More() {
		return Origin{}, fmt.Errorf("%s has a value that zxfer did not write: %s", OriginProperty, cutValue(value))
	}
	for name, text := range map[string]string{"job": o.Job, "target": o.Target} {
		if text != "" && !isRoleName(text) {
			return Origin{}, fmt.Errorf("%s: %s is not a valid name: %s", OriginProperty, name, cutValue(text))
		}
	}
	for name, text := range map[string]string{"source": o.Source, "host": o.Host} {
		if len(text) > 1024 || wantValue("zxfer:x", text) != "" {
			return Origin{}, fmt.Errorf("%s: %s is not a printable line: %s", OriginProperty, name, cutValue(text))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Set)) {
		if !slices.Contains(OriginProperties(), name) {
			return Origin{}, fmt.Errorf("%s: unexpected property %s", OriginProperty, cutValue(name))
		}
		if err := CheckValue(name, o.Set[name]); err != nil {
			return Origin{}, fmt.Errorf("%s: %w", OriginProperty, err)
		}
	}
	return o, nil
}
