package zfs

import (
	"fmt"
	"strings"
	"time"
)

// A copy that went its own way is set aside: renamed to its name and when, in UTC. Its
// name tells everybody what it is, also who finds it in years.
const (
	setAsideMark  = ".zxfer-"
	setAsideStamp = setAsideMark + "2006-01-02T15-04-05Z"
)

// DivergedSuffix is what the name of a copy that is set aside then ends in.
func DivergedSuffix(at time.Time) string { return at.UTC().Format(setAsideStamp) }

// NameBeforeRename is the name that a dataset had before it, or one above it, was set aside;
// false for one that is not.
func NameBeforeRename(dataset string) (before string, ok bool) {
	parts := strings.Split(dataset, "/")
	for i, p := range parts {
		at := strings.LastIndex(p, setAsideMark)
		if at <= 0 {
			continue
		}
		if _, err := time.Parse(setAsideStamp, p[at:]); err == nil {
			parts[i], ok = p[:at], true
		}
	}
	return strings.Join(parts, "/"), ok
}

// IsDiverged tells whether a dataset, or one above it, is a copy that was set aside.
func IsDiverged(dataset string) bool {
	_, ok := NameBeforeRename(dataset)
	return ok
}

// DivergedCopy is a copy that is to be set aside, with all that is below it.
type DivergedCopy struct {
	Dataset string `json:"dataset"`
	GUID    uint64 `json:"guid,string"`
	As      string `json:"as"` // its name then
}

// Check refuses another name than one of a copy that was set aside.
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
