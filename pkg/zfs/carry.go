package zfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Carry decides which property values another host may choose for a dataset that
// arrives from it. The zero value lets through properties that shape data. Plans,
// restricted keys and ReceiveArgs ask it, and nothing else decides this.
type Carry struct {
	// All also lets through what is harmless (see the class behaviour), and values
	// that take rights away: -p, and restores.
	All bool `json:"all,omitempty"`
	// Named are properties that the receiving administrator named, such as
	// "org.example:note". See CheckNamed.
	Named []string `json:"named,omitempty"`
}

// Reasons for which Carry withholds a value. A value that is not valid has another
// error.
var (
	// ErrUnasked is for properties that were not asked for, that come with the stream,
	// or that zxfer sets itself.
	ErrUnasked = errors.New("it was not asked for")
	ErrPlace   = errors.New("it belongs to the dataset's place")
	ErrRights  = errors.New("it can grant rights to programs or devices")
	ErrOwn     = errors.New("programs act on it: zxfer or systemd")
	ErrUnnamed = errors.New("nobody on the receiving side named it")
	ErrUnknown = errors.New("this version of zxfer does not know it")
)

// Check returns nil if the value that another host chose may be set on a dataset of
// type t, otherwise the reason.
func (c Carry) Check(t Type, name, value string) error {
	if err := CheckProperty(name); err != nil {
		return err
	}
	n, named := nativeOf(name), slices.Contains(c.Named, name)
	switch {
	case name == FlagsProperty || name == RestoreProperty:
		return ErrUnasked // zxfer sets its own
	case ownNamespace(name) && (c.All || named):
		return ErrOwn
	case n == nil && !named && !c.All:
		return ErrUnasked
	case n == nil && !UserProperty(name): // the other ZFS is newer than the table
		return ErrUnknown
	case n == nil && !named:
		return ErrUnnamed
	case n == nil:
		return CheckValue(name, value)
	case n.of == fixed || n.of == report || n.of == encryption || !n.fits(t):
		return ErrUnasked
	case n.of != shape && !c.All && !named:
		return ErrUnasked
	}
	if err := CheckValue(name, value); err != nil {
		return err
	}
	switch passes := slices.Contains(n.foreign, value); {
	case passes, n.of == shape && n.foreign == nil, n.of == behaviour:
		return nil
	case n.of == place:
		return ErrPlace
	case n.of == rights:
		return ErrRights
	case !named: // shape or resources
		return ErrUnnamed
	}
	return nil
}

// CheckNamed refuses the name of a property that has no effect in Carry.Named,
// because its value never comes from another host.
func CheckNamed(name string) error {
	if err := CheckProperty(name); err != nil {
		return err
	}
	n := nativeOf(name)
	var why error
	switch {
	case ownNamespace(name):
		why = ErrOwn
	case UserProperty(name):
	case n == nil:
		return fmt.Errorf("%s: there is no such property", name)
	case n.of == place:
		why = ErrPlace
	case n.of == rights:
		why = ErrRights
	case n.of == fixed || n.of == report || n.of == encryption:
		why = errors.New("it comes with the stream, or cannot be set")
	}
	if why != nil {
		return fmt.Errorf("%s cannot be carried: %w", name, why)
	}
	return nil
}

// ownNamespace reports whether programs of the host act on a user property: zxfer on
// its records, systemd's mount generator on units. No other host chooses these.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/man/man8/zfs-mount-generator.8.in (PROPERTIES)
func ownNamespace(name string) bool {
	return strings.HasPrefix(name, "zxfer:") || strings.HasPrefix(name, "org.openzfs.systemd:")
}
