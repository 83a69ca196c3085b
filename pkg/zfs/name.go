package zfs

import (
	"fmt"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
)

// Limits of names in the kernel.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (ZFS_MAX_DATASET_NAME_LEN)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zcommon/zfs_namecheck.c (zfs_max_dataset_nesting)
const (
	MaxName    = 255 // bytes of a full name, including "@snapshot" or "#bookmark"
	maxNesting = 50  // components of a dataset's name
)

// ParseDataset checks the name of a filesystem or volume and returns it. All errors of this
// file, except those of ParseGUID, are usage faults that wrap an *Error of kind InvalidName.
func ParseDataset(s string) (string, error) {
	if i := strings.IndexAny(s, "@#"); i >= 0 {
		return "", invalidName(s, fmt.Sprintf("a dataset is wanted, and %q makes this a %s", s[i], VersionKind(s[i]).noun()), "leave out "+s[i:])
	}
	return s, checkDataset(s, s)
}

// DeviceOf returns the path of a volume's device. udev replaces spaces in it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/udev/zvol_id.c
func DeviceOf(volume string) string { return "/dev/zvol/" + strings.ReplaceAll(volume, " ", "+") }

// ParseSnapshot splits "pool/a@x" into dataset and snapshot name.
func ParseSnapshot(s string) (dataset, name string, err error) { return parseVersion(s, Snapshot) }

// ParseBookmark splits "pool/a#x" into dataset and bookmark name.
func ParseBookmark(s string) (dataset, name string, err error) { return parseVersion(s, Bookmark) }

// ParseVersion splits the full name of a snapshot or bookmark. It sets only Kind and Name of
// the version.
func ParseVersion(s string) (dataset string, v Version, err error) {
	i := strings.IndexAny(s, "@#")
	if i < 0 {
		return "", Version{}, invalidName(s, "it names no snapshot or bookmark", "write "+s+"@SNAPSHOT or "+s+"#BOOKMARK")
	}
	v.Kind = VersionKind(s[i])
	dataset, v.Name, err = parseVersion(s, v.Kind)
	if err != nil {
		return "", Version{}, err
	}
	return dataset, v, nil
}

func parseVersion(s string, kind VersionKind) (dataset, name string, err error) {
	dataset, name, found := strings.Cut(s, string(kind))
	if !found {
		return "", "", invalidName(s, fmt.Sprintf("it names no %s", kind.noun()), "write DATASET"+string(kind)+"NAME")
	}
	if err := checkDataset(s, dataset); err != nil {
		return "", "", err
	}
	if why := componentFault(name); why != "" {
		return "", "", invalidName(s, fmt.Sprintf("its %s part %s", kind.noun(), why), nameHint)
	}
	return dataset, name, nil
}

// CheckComponent checks one component of a name: of a dataset, or the part after "@" or "#".
func CheckComponent(s string) error {
	if why := componentFault(s); why != "" {
		return invalidName(s, "it "+why, nameHint)
	}
	if len(s) > MaxName {
		return invalidName(s, tooLong(s), nameHint)
	}
	return nil
}

const nameHint = `names are made of letters, digits and any of "-", "_", ".", ":" and space; "/" parts the levels of a dataset`

// checkDataset checks the dataset part of full and the length of full.
func checkDataset(full, dataset string) error {
	if len(full) > MaxName {
		return invalidName(full, tooLong(full), "choose a shorter target, or receive with another name")
	}
	parts := strings.Split(dataset, "/")
	if len(parts) > maxNesting {
		return invalidName(full, fmt.Sprintf("it is nested %d deep, and ZFS allows %d", len(parts), maxNesting), "")
	}
	for i, p := range parts {
		why := componentFault(p)
		if why == "" {
			continue
		}
		switch {
		case dataset == "":
			why = "its dataset part is empty"
		case p == "" && i == 0:
			why = `it begins with "/"`
		case p == "" && i == len(parts)-1:
			why = `it ends with "/"`
		case p == "":
			why = `it has nothing between two "/"`
		default:
			why = fmt.Sprintf("its part %q %s", p, why)
		}
		return invalidName(full, why, nameHint)
	}
	// Pool names start with a letter. This also prevents that a name is read as an option.
	if c := dataset[0]; !letter(c) {
		return invalidName(full, fmt.Sprintf("a pool's name begins with a letter, not %q", c), "")
	}
	return nil
}

// componentFault returns the fault of a component, "" if it is valid.
func componentFault(s string) string {
	if s == "" {
		return "is empty"
	}
	if s == "." || s == ".." {
		return fmt.Sprintf("is %q", s)
	}
	for i, r := range s {
		if r > 0x7f || !nameByte(byte(r)) {
			if r == '%' {
				return `has "%", which ZFS keeps for itself`
			}
			return fmt.Sprintf("has the character %q at byte %d", r, i)
		}
	}
	return ""
}

func nameByte(c byte) bool {
	return letter(c) || c >= '0' && c <= '9' || strings.IndexByte("-_.: ", c) >= 0
}

func letter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func tooLong(s string) string {
	return fmt.Sprintf("it has %d bytes, and ZFS allows %d", len(s), MaxName)
}

func (k VersionKind) noun() string {
	if k == Bookmark {
		return "bookmark"
	}
	return "snapshot"
}

// invalidName shortens s, because untrusted names may be long.
func invalidName(s, why, hint string) error {
	subject := s
	if len(subject) > 300 {
		subject = subject[:300] + "…"
	}
	return &fault.Error{Class: fault.Usage, Err: &Error{
		Kind: InvalidName, Op: "name", Subject: strconv.Quote(subject), Detail: why, Hint: hint}}
}

// ParseGUID parses a GUID in decimal, as zfs get -p prints it. 0 is an error.
func ParseGUID(s string) (uint64, error) {
	g, err := strconv.ParseUint(s, 10, 64)
	if err != nil || g == 0 {
		return 0, fmt.Errorf("got %q, expected a GUID (decimal, not 0)", s)
	}
	return g, nil
}

// TagPrefix is the prefix of the hold tags and bookmark names of zxfer's jobs.
const TagPrefix = "zxfer:"

// IsJobTag reports whether a job of zxfer placed the hold: "zxfer:JOB:TARGET".
func IsJobTag(tag string) bool {
	rest, ours := strings.CutPrefix(tag, TagPrefix)
	return ours && strings.Contains(rest, ":")
}

// CheckTag checks the tag of a hold. It must be valid as a name component and must not look
// like an option.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_userhold.c (dsl_dataset_user_hold_check_one)
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/cmd/zfs/zfs_main.c (zfs_do_hold_rele_impl)
func CheckTag(tag string) error {
	if err := CheckComponent(tag); err != nil {
		return fmt.Errorf("tag of a hold: %w", err)
	}
	if tag[0] == '-' || tag[0] == '.' {
		return fault.Usagef("", "tag of a hold %q: it begins with %q", tag, tag[:1])
	}
	return nil
}
