package importer

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// filter is zrepl's selection of filesystems: trees, and single datasets.
//
// https://zrepl.github.io/configuration/filter_syntax.html
type filter struct {
	trees, single map[string]bool
}

// sources returns a draft for each topmost tree and single dataset that the filter passes. It does
// not add them to the state.
func (z *zrepl) sources(j *zreplJob, line int) ([]*draft, error) {
	f, err := z.filter(line, j.Filesystems)
	if err != nil {
		return nil, err
	}
	where := z.where(line)
	if f.trees[""] {
		z.addEntry(nil, where, `"<": true`, `write "POOL<": true for every pool, and import again: a job has one source`)
	}
	var out []*draft
	paths := slices.Compact(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(f.trees)), slices.Collect(maps.Keys(f.single))...))))
	for _, path := range paths {
		tree := f.trees[path]
		if path == "" || f.above(path) || !tree && !f.single[path] {
			continue
		}
		if i := slices.IndexFunc(out, func(d *draft) bool { return isWithin(d.Source, path) }); i >= 0 {
			z.addEntry(out[i], where, path, "write a job for it: it is included below an excluded dataset")
			continue
		}
		d := &draft{where: where, preferredName: j.Name, Job: replicate.Job{Source: path, Recursive: tree}}
		out = append(out, d)
		if tree {
			z.excludeFiltered(d, f, paths)
		}
	}
	if len(out) == 0 && !f.trees[""] {
		z.addEntry(nil, where, j.Name, "nothing: its filesystems exclude everything")
	}
	for _, d := range out {
		if len(out) > 1 {
			d.preferredName = j.Name + "-" + nameFor(d.Source)
		}
	}
	return out, nil
}

// above reports whether the filter passes the longest tree above path.
func (f *filter) above(path string) bool {
	for path != "" {
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
		if pass, ok := f.trees[path]; ok {
			return pass
		}
	}
	return false
}

func (z *zrepl) filter(line int, filesystems map[string]bool) (*filter, error) {
	f := &filter{map[string]bool{}, map[string]bool{}}
	for pattern, pass := range filesystems {
		name, tree := strings.CutSuffix(strings.TrimSpace(pattern), "<")
		name = strings.Trim(name, "/")
		to := f.single
		if tree {
			to = f.trees
		} else if name == "" {
			return nil, fault.Usagef(`write "POOL/DATASET" or "POOL/DATASET<"`, "%s: %q is not a pattern of filesystems", z.where(line), pattern)
		}
		if name != "" {
			var err error
			if name, err = dataset(z.where(line), name); err != nil {
				return nil, err
			}
		}
		to[name] = pass
	}
	return f, nil
}

// excludeFiltered adds the exclusions of the filter to a tree's draft.
func (z *zrepl) excludeFiltered(d *draft, f *filter, paths []string) {
	for _, path := range paths {
		tree, isTree := f.trees[path]
		alone, isAlone := f.single[path]
		switch {
		case !isWithin(d.Source, path):
		case path == d.Source && isAlone && !alone:
			d.Exclude = append(d.Exclude, ".")
		case isTree && !tree:
			d.Exclude = append(d.Exclude, pathBelow(d.Source, path))
		case isAlone && !alone:
			d.Exclude = append(d.Exclude, "re:^"+regexp.QuoteMeta(path[len(d.Source)+1:])+"$")
		}
	}
}
