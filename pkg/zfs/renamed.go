package zfs

import (
	"cmp"
	"fmt"
	"strings"
)

// RenamedCopy is a copy to rename together with its descendants, because its source dataset was
// renamed.
type RenamedCopy struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	As      string `json:"as"` // the new name, in the same pool
	// Base is the GUID of a snapshot that the copy must have.
	Base uint64 `json:"base,string"`
}

// Check returns an error if no copy may be renamed like that.
func (r RenamedCopy) Check() error {
	for _, name := range []string{r.Dataset, r.As} {
		if _, err := ParseDataset(name); err != nil {
			return err
		}
		if ParentOf(name) == "" || IsDiverged(name) || IsDrillClone(name) {
			return fmt.Errorf("cannot rename %s to %q", r.Dataset, r.As)
		}
	}
	if r.Dataset == r.As || strings.HasPrefix(r.As, r.Dataset+"/") || PoolOf(r.Dataset) != PoolOf(r.As) || r.GUID == 0 || r.Base == 0 {
		return fmt.Errorf("cannot rename %s to %q", r.Dataset, r.As)
	}
	return nil
}

// RefusalReason returns why the copy must not be renamed, or "" if it may be. l lists the copy and
// its descendants with their versions and with the properties mounted, encryptionroot and RoleProperty.
// parentRoot is the encryption root of the new parent.
func (r RenamedCopy) RefusalReason(l *Listing, parentRoot string) string {
	d := l.Find(r.Dataset)
	if d == nil || d.GUID != r.GUID {
		return "it is another dataset than before"
	}
	if _, ok := d.SnapshotOf(r.Base); !ok {
		return fmt.Sprintf("it has no snapshot with GUID %d", r.Base)
	}
	for _, other := range l.Datasets {
		if other.Get("mounted") == "yes" {
			return other.Name + " is mounted"
		}
	}
	return cmp.Or(sourceWithin(l), KeyMove(d, parentRoot))
}

// KeyMove returns why a dataset cannot move below a parent with that encryption root, or "" if it
// can: a dataset that inherits its key would lose it.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dsl_crypt.c (dsl_dir_rename_crypt_check)
func KeyMove(d *Dataset, parentRoot string) string {
	root := d.Get("encryptionroot")
	if root == "" || root == "-" || root == d.Name || root == parentRoot {
		return ""
	}
	return "it inherits the key of " + root + ", which is not the encryption root of its new parent"
}
