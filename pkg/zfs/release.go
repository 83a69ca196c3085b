package zfs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Release is the numeric part of an OpenZFS or kernel version.
type Release [3]int

// ParseRelease parses "2.3.9-1"; ok is false if it is not a release.
func ParseRelease(s string) (v Release, ok bool) {
	number, _, _ := strings.Cut(strings.TrimPrefix(s, "zfs-"), "-")
	parts := strings.Split(number, ".")
	if len(parts) < 2 {
		return v, false
	}
	for i, p := range parts[:min(3, len(parts))] {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return Release{}, false
		}
		v[i] = n
	}
	return v, true
}

// Before reports whether v is older than w.
func (v Release) Before(w Release) bool { return slices.Compare(v[:], w[:]) < 0 }

// Within reports whether v is at least from and less than before.
func (v Release) Within(from, before Release) bool { return !v.Before(from) && v.Before(before) }

// Lacks reports whether v is older than a fix. fixes are its first releases, one per branch, in
// order. A branch not listed has the fix if it is newer than all of them.
func (v Release) Lacks(fixes []Release) bool {
	for _, f := range fixes {
		if f[0] == v[0] && f[1] == v[1] {
			return v.Before(f)
		}
	}
	return len(fixes) == 0 || v.Before(fixes[len(fixes)-1])
}

func (v Release) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }
