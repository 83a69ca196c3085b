package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/replicate/record"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// tagPrefix begins the tags of holds and the names of bookmarks.
const tagPrefix = "zxfer:"

// Tag is the tag of the holds that a job places for a target.
func Tag(job, target string) string { return tagPrefix + job + ":" + target }

// JobOfTag returns the job whose tag it is; false for tags of others.
func JobOfTag(tag string) (string, bool) {
	rest, ours := strings.CutPrefix(tag, tagPrefix)
	job, _, whole := strings.Cut(rest, ":")
	return job, ours && whole
}

// bookmarkOf is the name of the job's bookmark of a snapshot, "" where it
// would be too long.
func (w *work) bookmarkOf(dataset, snapshot string) string {
	name := tagPrefix + w.job.Name + ":" + snapshot
	if _, _, err := zfs.ParseBookmark(dataset + "#" + name); err != nil {
		return ""
	}
	return dataset + "#" + name
}

// keep places holds on the newest common snapshots and bookmarks on what was
// sent. What fails is noted: the data did arrive.
func (w *work) keep(ctx context.Context) {
	for _, t := range w.targets {
		if t.result != nil && t.run.Error == "" {
			w.keepFor(ctx, t)
		}
	}
}

// keepFor moves a target's holds to the new bases. The new ones are written
// down before they are placed, so that a crash at any moment leaves none
// behind that the next run does not know of.
func (w *work) keepFor(ctx context.Context, t *targetWork) {
	onSource, onTarget := w.job.Holds != "none" && w.job.Holds != "target", w.job.Holds != "none" && w.job.Holds != "source"
	tag := Tag(w.job.Name, t.Name)
	var source, target, oldSource, oldTarget []string
	bookmarks := map[string]string{}
	var moved []*record.Arrival
	for _, d := range t.result.Datasets {
		a := w.state.Arrival(d.Source, t.Name)
		if d.Err != nil || d.There == "" {
			continue
		}
		now := record.Held{Source: d.Arrive.In(d.Source), There: d.Target + "@" + d.There}
		if a.BaseGUID == d.Arrive.GUID && len(a.Held) <= 1 && (len(a.Held) == 1 && a.Held[0] == now || !onSource && !onTarget) {
			continue
		}
		for _, h := range a.Held {
			if h != now {
				oldSource, oldTarget = append(oldSource, h.Source), append(oldTarget, h.There)
			}
		}
		if !slices.Contains(a.Held, now) && (onSource || onTarget) {
			a.Held = append(a.Held, now)
		}
		a.Base, a.There, a.BaseGUID = d.Arrive.Name, d.There, d.Arrive.GUID
		source, target = append(source, now.Source), append(target, now.There)
		if b := w.bookmarkOf(d.Source, d.Arrive.Name); b != "" && w.job.Bookmarks != "none" {
			bookmarks[b] = now.Source
		}
		moved = append(moved, a)
	}
	if len(moved) == 0 {
		return
	}
	if err := w.store.Save(w.state); err != nil {
		w.note("%s: no holds were placed: %v", t.Name, err)
		return
	}
	failed := false
	try := func(what string, err error) {
		if err != nil {
			failed = true
			w.note("%s: %s: %v", t.Name, what, err)
		}
	}
	if onSource {
		try("hold", w.onSource(ctx, func(st site.Site) error { return st.Hold(ctx, tag, source) }))
	}
	if onTarget {
		try("hold", w.onTarget(ctx, t, func(st site.Site) error { return st.Hold(ctx, tag, target) }))
	}
	if len(bookmarks) > 0 {
		try("bookmark", w.onSource(ctx, func(st site.Site) error { return st.Bookmark(ctx, bookmarks) }))
	}
	if failed {
		return // the old holds stay until the new ones are there
	}
	if onSource && len(oldSource) > 0 {
		try("release", w.onSource(ctx, func(st site.Site) error { return st.Release(ctx, tag, oldSource) }))
	}
	if onTarget && len(oldTarget) > 0 {
		try("release", w.onTarget(ctx, t, func(st site.Site) error { return st.Release(ctx, tag, oldTarget) }))
	}
	if !failed {
		for _, a := range moved {
			if len(a.Held) > 0 {
				a.Held = a.Held[len(a.Held)-1:]
			}
		}
	}
}

// remember writes log, state and metrics.
func (w *work) remember() error {
	brief := *w.run
	brief.Targets = nil
	for _, t := range w.run.Targets {
		short := *t
		short.Datasets = nil
		brief.Targets = append(brief.Targets, &short)
	}
	w.state.LastRun = &brief
	w.forgetGone()
	return errors.Join(w.store.Append(w.run), w.store.Save(w.state))
}

// forgetGone drops what the job does not concern any more, so that status
// calls nothing late that nobody wants. Where something may still be held it
// stays.
func (w *work) forgetGone() {
	if len(w.all.Datasets) == 0 {
		return // the source was not seen
	}
	targets := map[string]bool{}
	for _, t := range w.targets {
		targets[t.Name] = true
	}
	for name, d := range w.state.Datasets {
		for target := range d.Targets {
			if !targets[target] {
				delete(d.Targets, target)
			}
		}
		if len(targets) > 0 {
			d.Alone = nil
		}
		if !w.selected[name] {
			delete(w.state.Datasets, name)
		}
	}
}

// Metrics writes the metrics of all jobs, so far as they have run.
func (r *Runner) Metrics(path string, jobs []string) error {
	var states []*record.State
	for _, name := range jobs {
		st, err := record.Peek(r.StateDir, name).State()
		if err != nil {
			return err
		}
		states = append(states, st)
	}
	if err := record.Replace(path, record.Metrics(states), 0o644); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
