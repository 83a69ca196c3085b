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

// AncestorProperties are those of SurveyProperties that a restricted key may read of
// datasets above its grant: what a plan needs. Places, key files and snapshots' names
// are not among them.
func AncestorProperties() []string {
	return slices.DeleteFunc(SurveyProperties(), func(p string) bool {
		return slices.Contains([]string{"mountpoint", "mounted", "canmount", "keylocation", "origin", "receive_resume_token"}, p)
	})
}

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

// UserProperty reports whether a property is a user property, with ":".
func UserProperty(name string) bool { return strings.Contains(name, ":") }
