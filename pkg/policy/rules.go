package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// Operations that are named here more than once.
const (
	opOffer    = "offer"
	opTransfer = "transfer"
)

// maxTokens bounds the resume tokens of one request: to judge one takes a look
// at its dataset, by a process.
const maxTokens = 1000

// ownTags begin the tags of holds that zxfer places for its jobs.
const ownTags = "zxfer:"

// rules are all that can be allowed, by operation. What is not here is
// refused.
func rules() map[string]rule {
	return map[string]rule{
		"facts":      judging(nil, func(*Guard, context.Context, *struct{}) error { return nil }),
		"host-facts": judging(nil, func(*Guard, context.Context, *struct{}) error { return nil }), // less than facts
		"capture": judging(nil, func(_ *Guard, _ context.Context, _ *bool) error {
			return errHostFacts
		}),
		"list": judging(nil, func(g *Guard, _ context.Context, q *listQuery) error {
			for _, n := range append([]string{q.Dataset}, q.Only...) {
				if err := g.look(n); err != nil {
					return err
				}
			}
			return nil
		}),
		"dataset-of": judging(nil, func(g *Guard, ctx context.Context, path *string) error {
			dataset, err := g.site.DatasetOf(ctx, *path)
			if err != nil || !below(dataset, g.policy.Send) {
				// Not whether there is such a path: that is not for them to know.
				return errors.New("the path is not on a dataset that may be sent")
			}
			return nil
		}),
		"properties": judging(nil, (*Guard).properties),
		"estimate": judging(nil, func(g *Guard, ctx context.Context, streams *[]sendSpec) error {
			tokens := 0
			for _, s := range *streams {
				if s.Token != "" {
					tokens++
				}
			}
			if tokens > maxTokens {
				return fmt.Errorf("%d resume tokens at once, at most %d are allowed", tokens, maxTokens)
			}
			return g.send(ctx, *streams...)
		}),
		"digest": judging(nil, (*Guard).digest),
		"snapshot": judging(toldNames, func(g *Guard, _ context.Context, names *[]string) error {
			return g.snapshots(*names, g.policy.Send, "snapshot")
		}),
		"hold": judging((*hold).told, func(g *Guard, _ context.Context, h *hold) error {
			if err := h.check(); err != nil {
				return err
			}
			return g.snapshots(h.Snapshots, g.all(), "hold")
		}),
		"release": judging((*hold).told, func(g *Guard, _ context.Context, h *hold) error {
			if err := h.check(); err != nil {
				return err
			}
			if g.policy.AppendOnly && !strings.HasPrefix(h.Tag, ownTags) {
				return fmt.Errorf("append-only: the hold %q is not one of zxfer's jobs", h.Tag)
			}
			return g.snapshots(h.Snapshots, g.all(), "release")
		}),
		"holds": judging(nil, func(g *Guard, _ context.Context, names *[]string) error {
			return g.snapshots(*names, g.all(), "holds")
		}),
		"bookmark":       judging(toldMarks, (*Guard).bookmark),
		"destroy":        judging(toldNames, (*Guard).destroy),
		"create-parents": judging(toldName, (*Guard).createParents),
		"discard-partial": judging(toldName, func(g *Guard, _ context.Context, dataset *string) error {
			return g.receivable(*dataset)
		}),
		opOffer:    judging(nil, (*Guard).offer),
		opTransfer: judging((*task).told, (*Guard).transfer),
	}
}

// errHostFacts refuses what tells of the whole host: mounts, pools,
// interfaces. A job that is told so goes without.
var errHostFacts = errors.New("facts of the whole host are not for this key")

func toldNames(names *[]string) account { return account{each: quoted(*names)} }

func toldName(name *string) account { return account{each: []string{quote(*name)}} }

func toldMarks(marks *map[string]string) (a account) {
	for _, b := range slices.Sorted(maps.Keys(*marks)) {
		a.each = append(a.each, quote(b)+" of "+quote((*marks)[b]))
	}
	return a
}

func (h *hold) told() account { return account{of: quote(h.Tag), each: quoted(h.Snapshots)} }

// check bounds the tag.
func (h *hold) check() error {
	if h.Tag == "" || len(quote(cut(h.Tag))) > maxTag || len(h.Tag) > zfs.MaxName {
		return fmt.Errorf("a hold's tag of %d bytes is none of zxfer's", len(h.Tag))
	}
	return nil
}

// told tells what a task receives before what it sends. Its ticket is secret.
func (t *task) told() (a account) {
	add := func(words ...string) { a.each = append(a.each, strings.Join(words, " ")) }
	if r := t.Receive; r != nil {
		add("receive", quote(r.Target))
		if r.Rollback {
			add("rollback")
		}
		if r.Origin != "" {
			add("origin", quote(r.Origin))
		}
		for _, name := range slices.Sorted(maps.Keys(r.Set)) {
			add("set", quote(name+"="+r.Set[name]))
		}
	}
	if s := t.Send; s != nil {
		add("send", quote(s.Dataset))
		if s.From != "" {
			add("from", quote(s.From))
		}
		for _, through := range s.Through {
			add("through", quote(through))
		}
		add("to", quote(s.To))
		if s.Token != "" {
			add("the rest of an interrupted stream")
		}
		if s.Flags.Raw {
			add("raw")
		}
	}
	return a
}

func (g *Guard) all() []string {
	return append(append([]string(nil), g.policy.Receive...), g.policy.Send...)
}

// look is for what only reads about a dataset.
func (g *Guard) look(dataset string) error {
	if !g.policy.granted(dataset) {
		return outside(dataset)
	}
	return nil
}

func (g *Guard) receivable(dataset string) error {
	if !below(dataset, g.policy.Receive) {
		return fmt.Errorf("nothing may be received into %q", cut(dataset))
	}
	return nil
}

func outside(name string) error { return fmt.Errorf("%q is not below an allowed dataset", cut(name)) }

// cut bounds what an error repeats.
func cut(s string) string { return s[:min(len(s), zfs.MaxName)] }

// snapshots judges names of snapshots, which must be of roots.
func (g *Guard) snapshots(names, roots []string, op string) error {
	for _, n := range names {
		dataset, _, err := zfs.ParseSnapshot(n)
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if !below(dataset, roots) {
			return outside(n)
		}
	}
	return nil
}

// properties may be read of what is granted, of its versions, and (type,
// space, encryption: what a plan must know) of what is above, as a list tells.
func (g *Guard) properties(_ context.Context, q *propertyQuery) error {
	surveyed := zfs.SurveyProperties()
	other := func(p string) bool { return !slices.Contains(surveyed, p) }
	for _, n := range q.Names {
		dataset := n
		if strings.ContainsAny(n, "@#") {
			var err error
			if dataset, _, err = zfs.ParseVersion(n); err != nil {
				return err
			}
		} else if g.policy.above(n) && len(q.Properties) > 0 && !slices.ContainsFunc(q.Properties, other) {
			continue
		}
		if !g.policy.granted(dataset) {
			return outside(n)
		}
	}
	for _, p := range q.Properties {
		if err := zfs.CheckProperty(p); err != nil {
			return err
		}
	}
	return nil
}

func (g *Guard) bookmark(_ context.Context, marks *map[string]string) error {
	for b, s := range *marks {
		of, _, err := zfs.ParseBookmark(b)
		if err != nil {
			return err
		}
		from, _, err := zfs.ParseSnapshot(s)
		if err != nil {
			return err
		}
		if of != from || !below(of, g.all()) {
			return outside(b)
		}
	}
	return nil
}

func (g *Guard) destroy(_ context.Context, versions *[]string) error {
	if g.policy.AppendOnly {
		return errors.New("append-only: nothing is destroyed")
	}
	for _, n := range *versions {
		dataset, _, err := zfs.ParseVersion(n)
		if err != nil {
			return err
		}
		if !below(dataset, g.all()) {
			return outside(n)
		}
	}
	return nil
}

// createParents creates below a granted dataset that is there, never above.
func (g *Guard) createParents(ctx context.Context, dataset *string) error {
	if err := g.receivable(*dataset); err != nil {
		return err
	}
	for _, root := range g.policy.Receive {
		if !below(*dataset, []string{root}) || *dataset == root {
			continue
		}
		there, err := g.site.Properties(ctx, []string{root}, []string{"type"})
		if err != nil {
			return err
		}
		if there[root] != nil {
			return nil
		}
		return fmt.Errorf("%s, which the policy names, does not exist: its administrator creates it", root)
	}
	return nil // the granted dataset itself: its parents are not for the agent to make
}
