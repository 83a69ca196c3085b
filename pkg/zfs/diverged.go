package zfs

import (
	"fmt"
	"strings"
	"time"
)

// A diverged copy is renamed to its name with a suffix that holds the UTC time.
const (
	divergedMark   = ".zxfer-"
	divergedLayout = divergedMark + "2006-01-02T15-04-05Z"
)

// DivergedSuffix returns the suffix of a copy that is renamed at a time.
func DivergedSuffix(at time.Time) string { return at.UTC().Format(divergedLayout) }

// NameBeforeRename returns the name of a dataset before it or an ancestor was renamed as a
// diverged copy. ok is false if none was.
func NameBeforeRename(dataset string) (before string, ok bool) {
	parts := strings.Split(dataset, "/")
	for i, p := range parts {
		at := strings.LastIndex(p, divergedMark)
		if at <= 0 {
			continue
		}
		if _, err := time.Parse(divergedLayout, p[at:]); err == nil {
			parts[i], ok = p[:at], true
		}
	}
	return strings.Join(parts, "/"), ok
}

// IsDiverged reports whether a dataset is a diverged copy or a descendant of one.
func IsDiverged(dataset string) bool {
	_, ok := NameBeforeRename(dataset)
	return ok
}

// DivergedCopy is a copy to rename together with its descendants.
type DivergedCopy struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	As      string `json:"as"` // the new name
}

// Check returns an error if As is not Dataset with a valid suffix.
func (a DivergedCopy) Check() error {
	if _, err := ParseDataset(a.Dataset); err != nil {
		return err
	}
	if _, err := ParseDataset(a.As); err != nil {
		return err
	}
	before, ok := NameBeforeRename(a.As)
	beside := ParentOf(a.As) == ParentOf(a.Dataset) && ParentOf(a.Dataset) != ""
	if !ok || !beside || before != a.Dataset || IsDiverged(a.Dataset) {
		return fmt.Errorf("%s cannot be set aside as %q", a.Dataset, a.As)
	}
	return nil
}
