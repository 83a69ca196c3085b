package importer

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
)

// filter is zrepl's choice of filesystems: of trees, and of datasets alone.
//
// https://zrepl.github.io/configuration/filter_syntax.html
type filter struct {
	trees, alone map[string]bool
}

func (z *zrepl) filter(line int, filesystems map[string]bool) (*filter, error) {
	f := &filter{map[string]bool{}, map[string]bool{}}
	for pattern, pass := range filesystems {
		name, tree := strings.CutSuffix(strings.TrimSpace(pattern), "<")
		name = strings.Trim(name, "/")
		to := f.alone
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

// above is whether the longest tree that holds a dataset, its own left out, is
// let through.
func (f *filter) above(path string) bool {
	for path != "" {
		path = path[:max(0, strings.LastIndexByte(path, '/'))]
		if pass, ok := f.trees[path]; ok {
			return pass
		}
	}
	return false
}

// sources makes a draft of every tree, and every dataset alone, where a filter
// begins to let through; they are not added yet.
func (z *zrepl) sources(j *zreplJob, line int) ([]*draft, error) {
	f, err := z.filter(line, j.Filesystems)
	if err != nil {
		return nil, err
	}
	where := z.where(line)
	if f.trees[""] {
		z.left(nil, where, `"<": true`, `write "POOL<": true for every pool, and import again: a job has one source`)
	}
	var out []*draft
	paths := slices.Compact(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(f.trees)), slices.Collect(maps.Keys(f.alone))...))))
	for _, path := range paths {
		tree := f.trees[path]
		if path == "" || f.above(path) || !tree && !f.alone[path] {
			continue
		}
		if i := slices.IndexFunc(out, func(d *draft) bool { return within(d.Source, path) }); i >= 0 {
			z.left(out[i], where, path, "write a job for it: it is let through again below what is left out")
			continue
		}
		d := &draft{where: where, wish: j.Name, Job: replicate.Job{Source: path, Recursive: tree}}
		out = append(out, d)
		if tree {
			z.leaveOut(d, f, paths)
		}
	}
	if len(out) == 0 && !f.trees[""] {
		z.left(nil, where, j.Name, "nothing: its filesystems let nothing through")
	}
	for _, d := range out {
		if len(out) > 1 {
			d.wish = j.Name + "-" + jobWord(d.Source)
		}
	}
	return out, nil
}

// leaveOut excludes from a tree what the filter does.
func (z *zrepl) leaveOut(d *draft, f *filter, paths []string) {
	for _, path := range paths {
		tree, isTree := f.trees[path]
		alone, isAlone := f.alone[path]
		switch {
		case !within(d.Source, path):
		case path == d.Source && isAlone && !alone:
			d.Exclude = append(d.Exclude, ".")
		case isTree && !tree:
			d.Exclude = append(d.Exclude, pathBelow(d.Source, path))
		case isAlone && !alone:
			d.Exclude = append(d.Exclude, "re:^"+regexp.QuoteMeta(path[len(d.Source)+1:])+"$")
		}
	}
}
