package zfs

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/fault"
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

// words are the values of properties that have a few, up to OpenZFS 2.4; those
// of switches are "on" and "off".
//
// https://github.com/openzfs/zfs/blob/zfs-2.4.4/module/zcommon/zfs_prop.c (zfs_prop_init)
var words = map[string]string{
	"aclinherit":         "discard noallow restricted passthrough secure passthrough-x",
	"aclmode":            "discard groupmask passthrough restricted",
	"acltype":            "off posix nfsv4 disabled noacl posixacl",
	"canmount":           "on off noauto",
	"checksum":           "on off fletcher2 fletcher4 sha256 noparity sha512 skein edonr blake3",
	"copies":             "1 2 3",
	"dedup":              "on off verify sha256 sha256,verify sha512 sha512,verify skein skein,verify edonr,verify blake3 blake3,verify",
	"direct":             "disabled standard always",
	"dnodesize":          "legacy auto 1k 2k 4k 8k 16k",
	"encryption":         "on off aes-128-ccm aes-192-ccm aes-256-ccm aes-128-gcm aes-192-gcm aes-256-gcm",
	"keyformat":          "raw hex passphrase",
	"logbias":            "latency throughput",
	"prefetch":           "none metadata all",
	"primarycache":       "none metadata all",
	"redundant_metadata": "all most some none",
	"secondarycache":     "none metadata all",
	"snapdev":            "hidden visible",
	"snapdir":            "hidden visible disabled",
	"sync":               "standard always disabled",
	"volmode":            "default full geom dev none",
	"xattr":              "off sa on dir",
}

var (
	switches = []string{"atime", "devices", "exec", "longname", "nbmand", "overlay", "readonly", "relatime", "setuid", "volthreading", "vscan", "zoned"}
	// limits take a size or a number, or none.
	limits = []string{"quota", "refquota", "reservation", "refreservation", "filesystem_limit", "snapshot_limit"}
)

// maxValue is how long the value of a property may be, in bytes.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/include/sys/fs/zfs.h (ZAP_MAXVALUELEN)
const maxValue = 8<<10 - 1

// CheckValue tells what no version of ZFS takes as the value of a property that
// is set, as far as that can be told without asking ZFS.
func CheckValue(property, value string) error {
	want := ""
	is := func(ok bool, what string) {
		if !ok {
			want = what
		}
	}
	size, isSize := parseSize(value)
	switch {
	case len(value) > maxValue:
		want = fmt.Sprintf("at most %d bytes", maxValue)
	case strings.ContainsRune(value, 0):
		want = "no byte 0"
	case UserProperty(property):
	case property == "compression":
		is(compressions.MatchString(value), "on, off, lz4, zstd, zstd-1 to zstd-19, zstd-fast, zstd-fast-1 to -10, gzip, gzip-1 to gzip-9, lzjb or zle")
	case words[property] != "":
		is(slices.Contains(strings.Fields(words[property]), value), strings.Join(strings.Fields(words[property]), ", "))
	case slices.Contains(switches, property):
		is(value == "on" || value == "off", "on or off")
	case property == "recordsize":
		is(isSize && size >= 512 && size <= 16<<20 && size&(size-1) == 0, "a power of two from 512 to 16M")
	case property == "special_small_blocks":
		is(isSize && size <= 16<<20, "a size up to 16M")
	case property == "refreservation" && value == "auto":
	case slices.Contains(limits, property):
		is(isSize || value == "none", "a size, such as 10G, or none")
	case property == "pbkdf2iters":
		n, err := strconv.ParseUint(value, 10, 64)
		is(err == nil && n >= 100000, "a number from 100000 on")
	case property == "mountpoint":
		is(strings.HasPrefix(value, "/") || value == "none" || value == "legacy", "an absolute path, none or legacy")
	case property == "keylocation":
		is(value == "prompt" || strings.HasPrefix(value, "file:///") || strings.HasPrefix(value, "https://") || strings.HasPrefix(value, "http://"),
			"prompt, or an address that begins with file:///, https:// or http://")
	}
	if want == "" {
		return nil
	}
	return fmt.Errorf("%s=%s: the value must be %s", property, cutValue(value), want)
}

// compressions are the algorithms, with their levels.
var compressions = regexp.MustCompile(`^(on|off|lzjb|zle|lz4|gzip(-[1-9])?|zstd(-[1-9]|-1[0-9])?|zstd-fast(-[1-9]|-[1-9]0|-100|-500|-1000)?)$`)

func cutValue(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// hasWord tells a word, alone or before a "-".
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
