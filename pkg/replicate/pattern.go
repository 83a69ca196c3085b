package replicate

import (
	"path"
	"slices"
	"strings"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Selects tells whether a dataset at or below the job's source is part of the
// job. A shell pattern without "/" matches the last part of a dataset's name at
// any depth, one with "/" the path below the source, and what is below a match is
// matched too. A regular expression ("re:") is looked for in the path below the
// source, of each dataset for itself. "." is the source itself, alone.
func (j *Job) Selects(source, dataset string) bool {
	if dataset != source && !strings.HasPrefix(dataset, source+"/") {
		return false
	}
	if zfs.IsAside(dataset) || zfs.IsSetAside(dataset) {
		return false // it is gone when the drill is; or no copy any more
	}
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	if len(j.Include) > 0 && !covered(j.Include, below) {
		return false
	}
	return !covered(j.Exclude, below)
}

// covered tells whether a pattern matches a path below the source, or one
// above it.
func covered(patterns []string, below string) bool {
	if below == "" {
		return slices.Contains(patterns, ".")
	}
	for _, pattern := range patterns {
		is, err := plan.ParsePattern(strings.TrimPrefix(pattern, "/"))
		if err != nil {
			continue // Validate refused it
		}
		if is.Expression() {
			if is.Match(below) {
				return true
			}
			continue
		}
		for p := below; p != "."; p = path.Dir(p) {
			subject := path.Base(p)
			if strings.Contains(pattern, "/") {
				subject = p
			}
			if is.Match(subject) {
				return true
			}
		}
	}
	return false
}
