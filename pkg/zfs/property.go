package zfs

import (
	"fmt"
	"slices"
	"strings"
)

// surveyProperties are read for every dataset. OpenZFS 2.1 knows all of them: it refuses a
// command with an unknown name. None is expensive to read.
const surveyProperties = "type,guid,createtxg,encryption,keystatus,encryptionroot,keyformat,keylocation,pbkdf2salt,pbkdf2iters," +
	"receive_resume_token,inconsistent,origin," +
	"recordsize,volsize,volblocksize,compression,checksum,copies,dnodesize,special_small_blocks," +
	"used,available,referenced,written,quota,refquota,reservation,refreservation," +
	"mountpoint,mounted,canmount,readonly,redacted," + FlagsProperty + "," + RestoreProperty

// FlagsProperty is a user property of received datasets that holds the stream flags of the
// first receive ("w", "Lec"). Later streams must have the same flags: a change of -L loses
// data or fails the receive (openzfs#6224).
const FlagsProperty = "zxfer:stream"

// RestoreProperty is a user property of datasets that a restore creates, until the restore is
// complete. Then zxfer removes the protection against changes.
const RestoreProperty = "zxfer:restore"

// ChangedProperty is the time at which a snapshot of the dataset was last taken, received,
// destroyed or renamed, in seconds by the host's clock. Bookmarks, holds and promotions of
// clones do not change it. It is stored in the pool. OpenZFS 2.2 and later have it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dir.c (dsl_dir_snap_cmtime_update)
const ChangedProperty = "snapshots_changed"

// NewestProperty is the full name of a dataset's most recent snapshot, or the origin of a
// clone without snapshots. zfs get reads it only by name and does not list it with "all". It
// costs nothing beyond the other properties, while a list of snapshots takes several lookups
// per snapshot, and many if the filesystem is unmounted.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_dataset.c (dsl_get_prev_snap)
const NewestProperty = "prevsnap"

// ChangeProperties returns the properties that show whether a dataset changed.
func ChangeProperties() []string {
	return []string{"type", "guid", "inconsistent", "origin", "encryptionroot", "receive_resume_token", "written", ChangedProperty}
}

// SurveyProperties returns the properties that a listing has for each dataset.
func SurveyProperties() []string { return strings.Split(surveyProperties, ",") }

// AncestorProperties returns the part of SurveyProperties that a restricted key may read of
// ancestors of its grant. It excludes mountpoints, key locations and snapshot names.
func AncestorProperties() []string {
	return slices.DeleteFunc(SurveyProperties(), func(p string) bool {
		return slices.Contains([]string{"mountpoint", "mounted", "canmount", "keylocation", "origin", "receive_resume_token"}, p)
	})
}

// CheckProperty checks the form of a property name: native ("recordsize") or user
// ("org:name").
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

// UserProperty reports whether a property is a user property, which has a ":".
func UserProperty(name string) bool { return strings.Contains(name, ":") }
