package site

import (
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// What another host answers is taken for granted by who asked: names in it
// become names on this host, and an answer is as long as the question. So a
// Site of another host holds its answers against the questions.

// CheckListing refuses a listing that is no answer to q.
func CheckListing(q ListQuery, l *zfs.Listing) error {
	for _, d := range slices.Concat(l.Ancestors, l.Datasets) {
		if d == nil {
			return fmt.Errorf("the listing of %s has a dataset without a name", q.Dataset)
		}
		if _, err := zfs.ParseDataset(d.Name); err != nil {
			return err
		}
		for _, v := range d.Versions {
			if of, _, err := zfs.ParseVersion(v.In(d.Name)); err != nil {
				return err
			} else if of != d.Name {
				return fmt.Errorf("%q was listed as a version of %s", v.Short(), d.Name)
			}
		}
	}
	for _, d := range l.Ancestors {
		if !strings.HasPrefix(q.Dataset, d.Name+"/") {
			return fmt.Errorf("%q was listed as a dataset above %s", d.Name, q.Dataset)
		}
	}
	for _, d := range l.Datasets {
		wanted := d.Name == q.Dataset || q.Recursive && strings.HasPrefix(d.Name, q.Dataset+"/")
		if len(q.Only) > 0 {
			wanted = slices.Contains(q.Only, d.Name)
		}
		if !wanted {
			return fmt.Errorf("%q was listed, and %s was asked for", d.Name, q.Dataset)
		}
		if d.Properties == nil {
			d.Properties = map[string]zfs.Property{}
		}
	}
	return nil
}

// CheckAbout refuses an answer about names that were not asked about.
func CheckAbout[V any](names []string, answer map[string]V) error {
	asked := make(map[string]bool, len(names))
	for _, n := range names {
		asked[n] = true
	}
	for n := range answer {
		if !asked[n] {
			return fmt.Errorf("it is about %q, which was not asked about", n)
		}
	}
	return nil
}
