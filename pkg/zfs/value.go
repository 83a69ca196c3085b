package zfs

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
)

// parseSize reads a size as zfs(8) takes it for a property: bytes, or with a
// unit of 1024 (128K, 1m, 1.5GiB).
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

// maxValue is how long the value of a property may be, in bytes.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (ZAP_MAXVALUELEN)
const maxValue = 8<<10 - 1

// CheckValue refuses a value that must not be set: one that no version of ZFS takes,
// as far as that can be told without asking ZFS, and one that is not a printable line.
// "zfs list -H" prints values as they are. A line break in one looks like the end of
// a row to programs that read it, such as zfs-mount-generator.
func CheckValue(property, value string) error {
	if want := wantValue(property, value); want != "" {
		return fmt.Errorf("%s=%s: the value must be %s", property, cutValue(value), want)
	}
	return nil
}

// wantValue returns what a value must be to be set, "" if it may be.
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

// cutValue shows the beginning of a value, quoted if it is not printable.
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

// CheckTag checks the tag of a hold: as long as a name, of the characters of one,
// and not to be taken for an option.
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
