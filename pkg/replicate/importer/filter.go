package importer

import (
	"sort"
	"strings"

	"zxfer/pkg/fault"
)

// filter is zrepl's choice of filesystems.
//
// https://zrepl.github.io/configuration/filter_syntax.html
type filter []rule

// rule is a pattern of a filter: a dataset alone, or with all below it.
type rule struct {
	path  string // "" with below: everything
	below bool
	pass  bool
	where string
}

// root is a tree that a filter lets through, for one job.
type root struct {
	path      string // "" is every pool
	recursive bool
	exclude   []string
	where     string
	coarse    []rule // exclude leaves out what is below these, too
}

func parseFilter(v value) (filter, error) {
	all, err := v.pairs()
	if err != nil {
		return nil, err
	}
	var f filter
	for _, p := range all {
		r := rule{where: p.at.where()}
		if r.pass, err = p.to.boolean(); err != nil {
			return nil, err
		}
		name := strings.TrimSpace(p.key)
		name, r.below = strings.CutSuffix(name, "<")
		if name = strings.Trim(name, "/"); name != "" {
			if r.path, err = dataset(r.where, name); err != nil {
				return nil, err
			}
		} else if !r.below {
			return nil, fault.Usagef(`write "POOL/DATASET" or "POOL/DATASET<"`, "%s: %q is no pattern of filesystems", r.where, p.key)
		}
		f = append(f, r)
	}
	sort.SliceStable(f, func(i, j int) bool {
		return f[i].path < f[j].path || f[i].path == f[j].path && f[i].below && !f[j].below
	})
	return f, nil
}

func (r rule) covers(path string) bool {
	return r.below && (r.path == "" || within(r.path, path))
}

// above is the rule of the longest tree that holds a dataset, its own left
// out; nil without one.
func (f filter) above(path string) *rule {
	var out *rule
	for i := range f {
		if f[i].path != path && f[i].covers(path) && (out == nil || len(f[i].path) >= len(out.path)) {
			out = &f[i]
		}
	}
	return out
}

// own are the rules of a dataset itself: the tree's and the one of it alone.
func (f filter) own(path string) (tree, alone *rule) {
	for i := range f {
		if f[i].path == path && f[i].below {
			tree = &f[i]
		} else if f[i].path == path {
			alone = &f[i]
		}
	}
	return tree, alone
}

// roots are the trees of a filter: each begins where the filter begins to let
// through. What a tree leaves out again is its exclude.
func (f filter) roots() []root {
	var out []root
	done := map[string]bool{}
	for _, r := range f {
		if done[r.path] {
			continue
		}
		done[r.path] = true
		tree, alone := f.own(r.path)
		outer := f.above(r.path)
		passed := outer != nil && outer.pass
		switch {
		case tree != nil && tree.pass && !passed:
			t := root{path: r.path, recursive: true, where: tree.where}
			if alone != nil && !alone.pass {
				t.exclude = append(t.exclude, ".")
			}
			f.leaveOut(&t)
			out = append(out, t)
		case alone != nil && alone.pass && (tree == nil && !passed || tree != nil && !tree.pass):
			out = append(out, root{path: r.path, where: alone.where})
		}
	}
	return out
}

// leaveOut fills a tree's exclude.
func (f filter) leaveOut(t *root) {
	done := map[string]bool{}
	for _, r := range f {
		if r.path == t.path || r.path == "" || t.path != "" && !within(t.path, r.path) || done[r.path] {
			continue
		}
		done[r.path] = true
		if f.inside(t.path, r.path) {
			continue // with a tree that is left out
		}
		tree, alone := f.own(r.path)
		switch {
		case tree != nil && !tree.pass:
			t.exclude = append(t.exclude, literal(below(t.path, r.path)))
		case alone != nil && !alone.pass && tree == nil:
			t.exclude = append(t.exclude, literal(below(t.path, r.path)))
			t.coarse = append(t.coarse, *alone)
		case alone != nil && !alone.pass:
			// The tree passes and its top does not: no pattern says so.
			t.coarse = append(t.coarse, *alone)
		}
	}
}

// inside tells whether a dataset below a tree is also below one that is left
// out of it.
func (f filter) inside(top, path string) bool {
	for _, r := range f {
		if !r.pass && r.path != path && r.path != top && r.covers(path) && within(top, r.path) {
			return true
		}
	}
	return false
}
