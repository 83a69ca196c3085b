package preflight

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// version is the numeric part of an OpenZFS or kernel version.
type version [3]int

// parseVersion parses "2.3.9-1"; ok is false if it is not a release.
func parseVersion(s string) (v version, ok bool) {
	number, _, _ := strings.Cut(strings.TrimPrefix(s, "zfs-"), "-")
	parts := strings.Split(number, ".")
	if len(parts) < 2 {
		return v, false
	}
	for i, p := range parts[:min(3, len(parts))] {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return version{}, false
		}
		v[i] = n
	}
	return v, true
}

func (v version) before(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// within reports whether v is at least from and less than before.
func (v version) within(from, before version) bool { return !v.before(from) && v.before(before) }

// lacks reports whether v is older than a fix. fixes are its first releases, one per branch, in
// order. A branch not listed has the fix if it is newer than all of them.
func (v version) lacks(fixes []version) bool {
	for _, f := range fixes {
		if f[0] == v[0] && f[1] == v[1] {
			return v.before(f)
		}
	}
	return len(fixes) == 0 || v.before(fixes[len(fixes)-1])
}

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
