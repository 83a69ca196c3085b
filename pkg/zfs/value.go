package zfs

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/printable"
)

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
