package replicate

import (
	"path"
	"slices"
	"strings"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// Selects tells whether a dataset at or below the job's source is chosen by its
// name. A shell pattern without "/" matches the last part of a dataset's name at
// any depth, one with "/" the path below the source, and what is below a match is
// matched too. A regular expression ("re:") is looked for in the path below the
// source, of each dataset for itself. "." is the source itself, alone.
func (c *Choice) Selects(source, dataset string) bool {
	if dataset != source && !strings.HasPrefix(dataset, source+"/") {
		return false
	}
	if zfs.IsDrillClone(dataset) || zfs.IsDiverged(dataset) {
		return false // it is gone when the drill is; or no copy any more
	}
	below := strings.TrimPrefix(strings.TrimPrefix(dataset, source), "/")
	if len(c.Include) > 0 && !covered(c.Include, below) {
		return false
	}
	return !covered(c.Exclude, below)
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

// Takes tells whether a dataset at or below the job's source is chosen.
func (c *Choice) Takes(source string, d *zfs.Dataset) bool {
	return c.Selects(source, d.Name) && c.marked(d)
}

// Named tells whether the name of a dataset alone decides that a job sends it to a
// target.
func (j *Job) Named(t *Target, source, dataset string) bool {
	return j.Property == "" && t.Property == "" && j.Selects(source, dataset) && t.Selects(source, dataset)
}

// marked tells whether a dataset has the property. Of the name alone it is what users
// of other tools have set: any value but a "no", and for zfs_autobackup's "child" and
// "parent" what is below, or the dataset alone.
func (c *Choice) marked(d *zfs.Dataset) bool {
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

// UserProperties are those that decide which datasets a job and its targets take.
func (j *Job) UserProperties() []string {
	var out []string
	add := func(c *Choice) {
		if name, _, _ := strings.Cut(c.Property, "="); name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	add(&j.Choice)
	for i := range j.Targets {
		add(&j.Targets[i].Choice)
	}
	return out
}
