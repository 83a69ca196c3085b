package zfs

import (
	"fmt"
	"slices"
	"strings"
)

// surveyProperties are read for every dataset of a survey. All are known to
// OpenZFS 2.1, which refuses the whole command for one unknown name, and none
// is expensive.
const surveyProperties = "type,guid,createtxg,encryption,keystatus,encryptionroot,keyformat,keylocation,pbkdf2salt,pbkdf2iters," +
	"receive_resume_token,inconsistent,origin," +
	"recordsize,volsize,volblocksize,compression,checksum,copies,dnodesize,special_small_blocks," +
	"used,available,referenced,written,quota,refquota,reservation,refreservation," +
	"mountpoint,mounted,canmount,readonly,redacted," + FlagsProperty + "," + RestoreProperty

// FlagsProperty is a user property of received datasets: the stream flags that
// their first receive used ("w", "Lec"). A chain must keep them: toggling -L
// within one loses data or fails the receive (openzfs#6224).
const FlagsProperty = "zxfer:stream"

// RestoreProperty is a user property of what a restore brings, from its first
// stream on until all has arrived: it is then that the dataset is given back what
// kept it from being changed meanwhile.
const RestoreProperty = "zxfer:restore"

// ChangedProperty is when a snapshot of a dataset was last taken, received,
// destroyed or renamed: in seconds, by the clock of the host. Bookmarks and
// holds leave it alone, and so does what a promotion brings to a clone. It is
// kept in the pool, and known to OpenZFS 2.2 and later.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dir.c (dsl_dir_snap_cmtime_update)
const ChangedProperty = "snapshots_changed"

// NewestProperty is the full name of a dataset's newest snapshot; of a clone
// without a snapshot of its own, its origin. zfs(8) knows it by name and does not
// list it among all. Reading it costs nothing beside the dataset's other
// properties, where a listing of all snapshots takes the kernel some lookups for
// each, and for each of an unmounted filesystem many.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dataset.c (dsl_get_prev_snap)
const NewestProperty = "prevsnap"

// ChangeProperties are those of a survey that only is to find out what changed.
func ChangeProperties() []string {
	return []string{"type", "guid", "inconsistent", "origin", "encryptionroot", "receive_resume_token", "written", ChangedProperty}
}

// SurveyProperties are the properties that a survey reads for each dataset.
func SurveyProperties() []string { return strings.Split(surveyProperties, ",") }

// CheckProperty checks the form of a property's name: native
// ("recordsize") or user ("org:name").
//
// https://openzfs.github.io/openzfs-docs/man/v2.3/7/zfsprops.7.html (User Properties)
func CheckProperty(name string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > MaxName:
		why = fmt.Sprintf("it has %d bytes, and ZFS allows %d", len(name), MaxName)
	case name[0] == '-':
		why = `it begins with "-"`
	}
	for _, r := range name {
		if lower := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'; !lower && !strings.ContainsRune(":+._-@#", r) {
			why = fmt.Sprintf("it has the character %q", r)
			break
		}
	}
	if why != "" {
		return invalidName(name, "no name of a property: "+why,
			`properties are written in lower case; user properties have a ":"`)
	}
	return nil
}

// UserProperty tells whether a property is one of the user's own, with ":".
func UserProperty(name string) bool { return strings.Contains(name, ":") }

// Sets of properties. The rules are those of zfs_prop.c and zfsprops(7).
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zcommon/zfs_prop.c
var (
	// shapesData: what decides the form of blocks written from now on.
	shapesData = []string{"recordsize", "volblocksize", "compression", "checksum", "copies", "dnodesize"}

	// filesystemOnly and volumeOnly cannot be set on the other type.
	filesystemOnly = []string{"aclinherit", "aclmode", "acltype", "atime", "canmount", "casesensitivity",
		"defaultgroupobjquota", "defaultgroupquota", "defaultprojectobjquota", "defaultprojectquota",
		"defaultuserobjquota", "defaultuserquota", "devices", "direct", "dnodesize", "exec",
		"filesystem_limit", "longname", "mountpoint", "nbmand", "normalization", "overlay", "quota",
		"recordsize", "refquota", "relatime", "setuid", "sharenfs", "sharesmb", "snapdir",
		"special_small_blocks", "utf8only", "version", "vscan", "xattr", "zoned"}
	volumeOnly = []string{"snapdev", "volblocksize", "volmode", "volsize", "volthreading"}

	// anyType can be set on both types.
	anyType = []string{"checksum", "compression", "context", "copies", "dedup", "defcontext", "encryption",
		"fscontext", "keyformat", "keylocation", "logbias", "mlslabel", "pbkdf2iters", "prefetch",
		"primarycache", "readonly", "redundant_metadata", "refreservation", "reservation", "rootcontext",
		"secondarycache", "snapshot_limit", "sync"}

	// placeBound belongs to where a dataset is, not to what it holds:
	// carrying it could mount over, share or fill up the target.
	placeBound = []string{"mountpoint", "canmount", "sharenfs", "sharesmb", "readonly", "zoned", "jailed",
		"mlslabel", "keylocation", "quota", "refquota", "reservation", "refreservation",
		"filesystem_limit", "snapshot_limit"}

	// fixedAtCreation comes with the stream or was decided at creation.
	fixedAtCreation = []string{"casesensitivity", "normalization", "utf8only", "volblocksize", "volsize",
		"encryption", "keyformat", "pbkdf2iters", "version", "origin"}

	// readOnly only report.
	readOnly = []string{"available", "clones", "compressratio", "createtxg", "creation", "defer_destroy",
		"encryptionroot", "filesystem_count", "guid", "inconsistent", "ivsetguid", "keyguid", "keystatus",
		"logicalreferenced", "logicalused", "mounted", "name", "numclones", "objsetid", "origin",
		"receive_resume_token", "redact_snaps", "redacted", "refcompressratio", "referenced",
		"snapshot_count", ChangedProperty, "type", "used", "usedbychildren", "usedbydataset",
		"usedbyrefreservation", "usedbysnapshots", "userrefs", "written"}

	// anyText may hold any text, tabs and line breaks too: paths, options of
	// other programs, labels.
	anyText = []string{"context", "defcontext", "fscontext", "keylocation", "mlslabel", "mountpoint",
		"rootcontext", "sharenfs", "sharesmb"}

	encryptionBound = []string{"encryption", "keyformat", "keylocation", "pbkdf2iters"}
)

// ShapesData tells whether a property decides how data is stored. These are
// carried by default.
func ShapesData(property string) bool { return slices.Contains(shapesData, property) }

// PlaceBound tells whether a property belongs to a dataset's place rather
// than to its data (mountpoint, sharing, limits …). These are never carried
// over, only set by hand.
func PlaceBound(property string) bool { return slices.Contains(placeBound, property) }

// EncryptionBound tells whether a property is part of a dataset's encryption:
// raw streams bring it, and refuse to have it set or excluded.
func EncryptionBound(property string) bool { return slices.Contains(encryptionBound, property) }

// ReadOnly tells whether a property only reports and can never be set.
func ReadOnly(property string) bool { return slices.Contains(readOnly, property) }

// Fixed tells whether a property is decided when a dataset is created, by the
// stream where that is a receive.
func Fixed(property string) bool { return slices.Contains(fixedAtCreation, property) }

// Known tells whether OpenZFS up to 2.4 has a property of this name. User
// properties exist once they are set.
func Known(property string) bool {
	return UserProperty(property) || slices.Contains(readOnly, property) || slices.Contains(anyType, property) ||
		slices.Contains(filesystemOnly, property) || slices.Contains(volumeOnly, property)
}

// freeText tells whether the value of a property may hold any text.
func freeText(property string) bool {
	return UserProperty(property) || !Known(property) || slices.Contains(anyText, property)
}

// Carryable tells whether the value of a property that is set locally on a
// source may be set with -o when its type is received elsewhere. ZFS tells of some
// that only report as set locally: filesystem_count, where a limit is above.
func Carryable(t Type, property string) bool {
	return Settable(t, property) && !ReadOnly(property) && !PlaceBound(property) && !slices.Contains(fixedAtCreation, property)
}

// Settable tells whether a dataset of the type can have the property. User
// properties and properties that this package does not know fit every type.
func Settable(t Type, property string) bool {
	if UserProperty(property) {
		return true
	}
	if t == Volume {
		return !slices.Contains(filesystemOnly, property)
	}
	return !slices.Contains(volumeOnly, property)
}
