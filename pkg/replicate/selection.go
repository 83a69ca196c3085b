package replicate

import (
	"path"
	"slices"
	"strings"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Selects reports whether a dataset at or below the job's source is selected, by name and by
// property.
func (c *Selection) Selects(source string, d *zfs.Dataset) bool {
	return c.SelectsName(source, d.Name) && c.hasProperty(d)
}

// SelectsName reports whether the name of a dataset at or below the job's source is selected. A shell
// pattern without "/" matches the last component at any depth. One with "/" matches the path
// relative to the source. Both also match descendants. A regular expression ("re:") is searched in
// the relative path of each dataset. "." matches only the source itself.
func (c *Selection) SelectsName(source, dataset string) bool {
	if dataset != source && !strings.HasPrefix(dataset, source+"/") {
		return false
	}
	if zfs.IsDrillClone(dataset) || zfs.IsDiverged(dataset) {
		return false // a drill destroys its clone; a diverged copy is no longer a copy
	}
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	if len(c.Include) > 0 && !matchesAny(c.Include, below) {
		return false
	}
	return !matchesAny(c.Exclude, below)
}

// matchesAny reports whether a pattern matches a relative path or one of its parents.
func matchesAny(patterns []string, below string) bool {
	if below == "" {
		return slices.Contains(patterns, ".")
	}
	for _, pattern := range patterns {
		is, err := plan.ParsePattern(strings.TrimPrefix(pattern, "/"))
		if err != nil {
			continue // Validate reports it
		}
		if is.IsRegexp() {
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

// hasProperty reports whether a dataset has the property. If only NAME is given, any value counts
// except those that mean "no". As in zfs_autobackup, "child" selects only descendants, and
// "parent" only the dataset itself.
func (c *Selection) hasProperty(d *zfs.Dataset) bool {
	name, value, valued := strings.Cut(c.Property, "=")
	if name == "" {
		return true
	}
	p := d.Properties[name]
	inherited := strings.HasPrefix(p.Source, "inherited")
	switch {
	case p.Source == "" || p.Source == "-":
		return false
	case valued:
		return p.Value == value
	case p.Value == "child":
		return inherited
	case p.Value == "parent":
		return !inherited
	}
	return !slices.Contains([]string{"", "-", "false", "off", "no"}, p.Value)
}
