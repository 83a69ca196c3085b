package zfs

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/printable"
)

// surveyProperties are read for every dataset. OpenZFS 2.1 knows all of them: it refuses a
// command with an unknown name. None is expensive to read.
const surveyProperties = "type,guid,createtxg,encryption,keystatus,encryptionroot,keyformat,keylocation,pbkdf2salt,pbkdf2iters," +
	"receive_resume_token,inconsistent,origin," +
	"recordsize,volsize,volblocksize,compression,checksum,copies,dedup,dnodesize,special_small_blocks," +
	"used,available,referenced,written,quota,refquota,reservation,refreservation," +
	"mountpoint,mounted,canmount,readonly,redacted," +
	"acltype,aclmode,aclinherit,nbmand,exec,setuid,devices,filesystem_limit,snapshot_limit,sharenfs,sharesmb," + FlagsProperty + "," + RestoreProperty + "," + RoleProperty + "," + OriginProperty + "," + SettingsProperty + "," +
	DirectionProperty + "," + CanMountProperty

// LongnameProperty permits file names of more than 255 bytes. A listing has it from OpenZFS 2.3 on. ZFS
// refuses to set it during a receive (EBUSY), because it activates a feature of the pool.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/zfs_ioctl.c (zfs_prop_set_special)
const LongnameProperty = "longname"

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
	return append([]string{"type", "guid", "inconsistent", "origin", "encryptionroot", "receive_resume_token", "written", ChangedProperty}, ListedAccess()...)
}

// SurveyProperties returns the properties that a listing has for each dataset, without LongnameProperty.
func SurveyProperties() []string { return strings.Split(surveyProperties, ",") }

// AncestorProperties returns the part of SurveyProperties that a restricted key may read of
// ancestors of its grant. It excludes mountpoints, shares, key locations, snapshot names and records of a source.
func AncestorProperties() []string {
	return slices.DeleteFunc(SurveyProperties(), func(p string) bool {
		return slices.Contains([]string{"mountpoint", "mounted", "canmount", "keylocation", "origin", "receive_resume_token", "sharenfs", "sharesmb", OriginProperty, SettingsProperty, DirectionProperty, CanMountProperty}, p)
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
		why = "is empty"
	case len(name) > MaxName:
		why = fmt.Sprintf("it has %d bytes, and ZFS allows %d", len(name), MaxName)
	case name[0] == '-':
		why = `it starts with "-"`
	}
	for _, r := range name {
		if lower := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'; !lower && !strings.ContainsRune(":+._-@#", r) {
			why = fmt.Sprintf("it has the character %q", r)
			break
		}
	}
	if why != "" {
		return invalidName(name, "not the name of a property: "+why,
			`write properties in lower case, and user properties with a ":"`)
	}
	return nil
}

// UserProperty reports whether a property is a user property, which has a ":".
func UserProperty(name string) bool { return strings.Contains(name, ":") }

// parseSize parses a size of a property: bytes, or with a unit of 1024 (128K, 1m, 1.5GiB).
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_util.c (zfs_nicestrtonum)
func parseSize(s string) (uint64, bool) {
	digits := strings.TrimRight(s, "bBkKmMgGtTpPeEzZiI")
	unit := strings.ToUpper(s[len(digits):])
	shift := 0
	if unit != "" && unit != "B" {
		shift = 10 * (1 + strings.IndexByte("KMGTPEZ", unit[0]))
		if rest := unit[1:]; shift == 0 || rest != "" && rest != "B" && rest != "IB" {
			return 0, false
		}
	}
	whole, fraction, point := strings.Cut(digits, ".")
	if whole+fraction == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return 0, false
	}
	if point {
		f, err := strconv.ParseFloat(digits, 64)
		f = math.Ldexp(f, shift)
		return uint64(f), err == nil && f < 1<<64
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || shift >= 64 || n<<shift>>shift != n {
		return 0, false
	}
	return n << shift, true
}

// maxValue is the largest length of a property value in bytes.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (ZAP_MAXVALUELEN)
const maxValue = 8<<10 - 1

// CheckValue returns an error if the value must not be set: no version of ZFS accepts it, or
// it is not a printable line. "zfs list -H" prints values unescaped, so a line break would
// look like the end of a row to other programs, such as zfs-mount-generator.
func CheckValue(property, value string) error {
	if want := wantValue(property, value); want != "" {
		return fmt.Errorf("%s=%s: the value must be %s", property, cutValue(value), want)
	}
	return nil
}

// wantValue returns a description of the valid values, "" if value is valid.
func wantValue(property, value string) string {
	switch {
	case len(value) > maxValue:
		return fmt.Sprintf("at most %d bytes", maxValue)
	case !printable.IsLine(value):
		return "one printable line of text (UTF-8)"
	}
	if n := nativeOf(property); n != nil {
		return n.requires(value)
	}
	return ""
}

// cutValue returns the start of a value, quoted if it is not printable.
func cutValue(s string) string {
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	if printable.IsLine(s) {
		return s
	}
	return strconv.Quote(s)
}

// hasWord reports whether s is a word, alone or before a "-".
func hasWord(s, word string) bool { return s == word || strings.HasPrefix(s, word+"-") }

// PropertyChange changes properties of a dataset.
type PropertyChange struct {
	Dataset string            `json:"dataset"`
	Set     map[string]string `json:"set,omitempty"`
	// Revert lists properties to revert to the received, inherited or default value.
	Revert []string `json:"revert,omitempty"`
}
