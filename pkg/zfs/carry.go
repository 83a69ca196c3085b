package zfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Carry decides which property values another host may choose for a dataset that it sends. The
// zero value permits properties that determine the form of the data, and the properties of Access. Plans,
// restricted keys and ReceiveArgs use it.
type Carry struct {
	// All also permits harmless properties (class behaviour) and values that remove rights. It
	// is set for -p and restores.
	All bool `json:"all,omitempty"`
	// Named lists properties that the receiving administrator named, such as
	// "org.example:note". See CheckNamed.
	Named []string `json:"named,omitempty"`
}

// Reasons for which Carry withholds a valid value.
var (
	// ErrNotRequested is for properties that were not requested, that the stream contains, or that
	// zxfer sets itself.
	ErrNotRequested = errors.New("it was not requested")
	ErrLocation     = errors.New("it depends on the dataset's location")
	ErrPrivileges   = errors.New("it can grant rights to programs or devices")
	ErrReserved     = errors.New("programs act on it: zxfer or systemd")
	ErrNotNamed     = errors.New("the receiving side did not request it")
	ErrUnknown      = errors.New("this version of zxfer does not know it")
)

// Check returns nil if a dataset of type t may have the value that another host chose.
// Otherwise it returns the reason.
func (c Carry) Check(t Type, name, value string) error {
	if err := CheckProperty(name); err != nil {
		return err
	}
	n, named := nativeOf(name), slices.Contains(c.Named, name)
	switch {
	case slices.Contains([]string{FlagsProperty, RestoreProperty, RoleProperty, OriginProperty, DirectionProperty, SettingsProperty, CanMountProperty}, name):
		return ErrNotRequested // zxfer sets its own
	case ownNamespace(name) && (c.All || named):
		return ErrReserved
	case n == nil && !named && !c.All:
		return ErrNotRequested
	case n == nil && !UserProperty(name): // the other host's ZFS is newer than the table
		return ErrUnknown
	case n == nil && !named:
		return ErrNotNamed
	case n == nil:
		return CheckValue(name, value)
	case n.of == fixed || n.of == report || n.of == encryption || !n.fits(t):
		return ErrNotRequested
	case n.of != shape && !n.access && !c.All && !named, n.of == rights && !c.All && !named && !slices.Contains(n.foreign, value):
		return ErrNotRequested
	}
	if err := CheckValue(name, value); err != nil {
		return err
	}
	switch passes := slices.Contains(n.foreign, value); {
	case passes, n.of == shape && n.foreign == nil, n.of == behaviour:
		return nil
	case n.of == place:
		return ErrLocation
	case n.of == rights:
		return ErrPrivileges
	case !named: // shape or resources
		return ErrNotNamed
	}
	return nil
}

// CheckNamed returns an error if a property has no effect in Carry.Named, because its value
// never comes from another host.
func CheckNamed(name string) error {
	if err := CheckProperty(name); err != nil {
		return err
	}
	n := nativeOf(name)
	var why error
	switch {
	case ownNamespace(name):
		why = ErrReserved
	case UserProperty(name):
	case n == nil:
		return fmt.Errorf("%s: there is no such property", name)
	case n.of == place:
		why = ErrLocation
	case n.of == rights:
		why = ErrPrivileges
	case n.of == fixed || n.of == report || n.of == encryption:
		why = errors.New("the stream sets it, or it cannot be set")
	}
	if why != nil {
		return fmt.Errorf("%s cannot be transferred: %w", name, why)
	}
	return nil
}

// ownNamespace reports whether programs on the host act on a user property: zxfer on its
// records, systemd's mount generator on units. Another host must not choose these.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/man/man8/zfs-mount-generator.8.in (PROPERTIES)
func ownNamespace(name string) bool {
	return strings.HasPrefix(name, "zxfer:") || strings.HasPrefix(name, "org.openzfs.systemd:")
}
