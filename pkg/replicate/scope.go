package replicate

import (
	"errors"
	"time"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Scope is the set of snapshots that a job takes or adopts.
type Scope struct {
	naming *Naming // nil if the job takes none
	adopt  plan.Patterns
}

// Scope returns the job's scope. If it is empty, or the template is invalid, it returns an error.
func (j *Job) Scope() (*Scope, error) {
	adopt := j.Snapshots.Adopt
	if j.Snapshots.ReceivedFrom != "" && len(adopt) == 0 {
		adopt = []string{"*"}
	}
	s := &Scope{adopt: plan.ParsePatterns(adopt)}
	if j.Snapshots.Take == "" {
		if len(s.adopt) == 0 {
			return nil, errors.New(`snapshots.take and snapshots.adopt are missing: the job would select no snapshot`)
		}
		return s, nil
	}
	var err error
	s.naming, err = NewNaming(j.Snapshots.Take, j.Name)
	return s, err
}

// Naming returns the naming of the job's own snapshots, or nil if it takes none.
func (s *Scope) Naming() *Naming { return s.naming }

// Has reports whether a snapshot is in the scope.
func (s *Scope) Has(name string) bool {
	_, own := s.Own(name)
	return own || s.adopt.Match(name)
}

// Own returns the time of one of the job's own snapshots, or false for other names.
func (s *Scope) Own(name string) (time.Time, bool) {
	if s.naming == nil {
		return time.Time{}, false
	}
	return s.naming.TimeOf(name)
}

// Dates returns a function that returns the date of a snapshot in the scope, for retention: in the name of one of the job's
// own, or the time in created of an adopted one, if that is known.
func (s *Scope) Dates(created map[string]time.Time) func(snapshot string) (time.Time, bool) {
	return func(name string) (at time.Time, known bool) {
		if at, known = s.Own(name); !known {
			at, known = created[name]
			known = known && s.Has(name)
		}
		return at, known
	}
}

// Adopted returns the adopted snapshots of a dataset. Retention needs their creation times.
func (s *Scope) Adopted(d *zfs.Dataset) []string {
	var out []string
	for _, v := range d.Snapshots() {
		if _, own := s.Own(v.Name); !own && s.Has(v.Name) {
			out = append(out, v.Name)
		}
	}
	return out
}

// Count returns the number of snapshots of a dataset in the scope.
func (s *Scope) Count(d *zfs.Dataset) int {
	n := 0
	for _, v := range d.Versions {
		if v.Kind == zfs.Snapshot && s.Has(v.Name) {
			n++
		}
	}
	return n
}

// Patterns returns patterns that all names in the scope match. They also match names with dates
// that do not exist.
func (s *Scope) Patterns() []string {
	all := s.adopt.Strings()
	if s.naming != nil {
		all = append(all, s.naming.Pattern())
	}
	return all
}
