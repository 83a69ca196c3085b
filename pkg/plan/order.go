package plan

import (
	"cmp"
	"slices"

	"zxfer/pkg/zfs"
)

// ordered returns datasets each after those above it and after the dataset that
// its origin lies in, otherwise by name. Promoted clones can make a circle of
// these: a parent then comes first all the same, and a clone before its origin.
// What is next above a dataset may be missing, where a job does not select it.
func ordered(datasets []*zfs.Dataset) []*zfs.Dataset {
	left := slices.SortedFunc(slices.Values(datasets), func(a, b *zfs.Dataset) int { return cmp.Compare(a.Name, b.Name) })
	waits := make(map[string]bool, len(left)) // those that are not in out yet
	for _, d := range left {
		waits[d.Name] = true
	}
	out := make([]*zfs.Dataset, 0, len(left))
	for len(left) > 0 {
		rest := left[:0]
		for _, d := range left {
			if waitsAbove(waits, d.Name) || waits[originDataset(d)] {
				rest = append(rest, d)
				continue
			}
			out = append(out, d)
			delete(waits, d.Name)
		}
		if len(rest) == len(left) {
			// A circle. The first by name waits for no parent.
			out = append(out, rest[0])
			delete(waits, rest[0].Name)
			rest = rest[1:]
		}
		left = rest
	}
	return out
}

func waitsAbove(waits map[string]bool, name string) bool {
	for name = zfs.ParentOf(name); name != ""; name = zfs.ParentOf(name) {
		if waits[name] {
			return true
		}
	}
	return false
}

// originDataset is the dataset that a clone was made from, "" for no clone.
func originDataset(d *zfs.Dataset) string {
	origin, _, err := zfs.ParseSnapshot(d.Get("origin"))
	if err != nil || origin == d.Name {
		return ""
	}
	return origin
}
