package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/replicate"
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
// behind that the next run does not know of. Each side is on its own: that one
// cannot be held does not let the holds of the other pile up.
func (w *work) keepFor(ctx context.Context, t *targetWork) {
	sides := []*holding{
		{wanted: w.job.Holds != "none" && w.job.Holds != "target", do: w.onSource, name: func(h *record.Held) *string { return &h.Source }},
		{wanted: w.job.Holds != "none" && w.job.Holds != "source", name: func(h *record.Held) *string { return &h.There },
			do: func(ctx context.Context, f func(site.Site) error) error { return w.onTarget(ctx, t, f) }},
	}
	bookmarks := map[string]string{}
	var moved []*record.Arrival
	for _, d := range t.result.Datasets {
		if d.Err != nil || d.There == "" {
			continue
		}
		a, base := w.state.Arrival(d.Source, t.Name), record.Held{Source: d.Arrive.In(d.Source), There: d.Target + "@" + d.There}
		var now []record.Held // one, or none
		for _, s := range sides {
			if !s.wanted {
				*s.name(&base) = ""
			}
		}
		if base != (record.Held{}) {
			now = append(now, base)
		}
		if a.BaseGUID == d.Arrive.GUID && !a.Moving && slices.Equal(a.Held, now) {
			continue
		}
		for _, h := range a.Held {
			// Where the copy was renamed its hold went along.
			if _, snapshot, ok := strings.Cut(h.There, "@"); ok && h.There != d.Target+"@"+snapshot {
				a.Held = append(a.Held, record.Held{There: d.Target + "@" + snapshot})
			}
		}
		for _, s := range sides {
			s.move(a.Held, &base)
		}
		a.Held = append(slices.DeleteFunc(a.Held, func(h record.Held) bool { return h == base }), now...)
		a.Base, a.There, a.BaseGUID, a.Moving = d.Arrive.Name, d.There, d.Arrive.GUID, true
		if b := w.bookmarkOf(d.Source, d.Arrive.Name); b != "" && w.job.Bookmarks != "none" {
			bookmarks[b] = d.Arrive.In(d.Source)
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
	whole := true
	try := func(what string, err error) {
		if err != nil {
			whole = false
			w.note("%s: %s: %v", t.Name, what, err)
		}
	}
	for _, s := range sides {
		try("hold", s.hold(ctx, Tag(w.job.Name, t.Name)))
	}
	if len(bookmarks) > 0 {
		try("bookmark", w.onSource(ctx, func(st site.Site) error { return st.Bookmark(ctx, bookmarks) }))
	}
	for _, s := range sides {
		try("release", s.release(ctx, Tag(w.job.Name, t.Name)))
	}
	for _, a := range moved {
		for _, s := range sides {
			s.forget(a.Held)
		}
		a.Held = slices.DeleteFunc(a.Held, func(h record.Held) bool { return h == record.Held{} })
		a.Moving = !whole
	}
}

// holding is how a target's holds move on one side.
type holding struct {
	wanted bool // whether the job holds there
	do     func(context.Context, func(site.Site) error) error
	name   func(*record.Held) *string // of the side

	place, drop []string
	// gone are the names that carry no hold for sure.
	gone map[string]bool
	// refused tells that the new holds are not there: the old ones stay.
	refused bool
}

// move notes that what is held is to be base, and nothing else.
func (s *holding) move(held []record.Held, base *record.Held) {
	to := *s.name(base)
	if to != "" {
		s.place = append(s.place, to)
	}
	for i := range held {
		if old := *s.name(&held[i]); old != "" && old != to {
			s.drop = append(s.drop, old)
		}
	}
}

func (s *holding) hold(ctx context.Context, tag string) error {
	s.gone = map[string]bool{}
	if len(s.place) == 0 {
		return nil
	}
	err := s.do(ctx, func(st site.Site) error { return st.Hold(ctx, tag, s.place) })
	s.refused = err != nil
	if errors.Is(err, &zfs.Error{Kind: zfs.Permission}) { // asked before the first is placed
		for _, n := range s.place {
			s.gone[n] = true
		}
	}
	return err
}

func (s *holding) release(ctx context.Context, tag string) error {
	if s.refused || len(s.drop) == 0 {
		return nil
	}
	err := s.do(ctx, func(st site.Site) error { return st.Release(ctx, tag, s.drop) })
	if err == nil {
		for _, n := range s.drop {
			s.gone[n] = true
		}
	}
	return err
}

// forget takes the side's names that carry no hold out of what is held.
func (s *holding) forget(held []record.Held) {
	for i := range held {
		if n := s.name(&held[i]); s.gone[*n] {
			*n = ""
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
// calls nothing late that nobody wants. What is held of it is stale: holds --gc.
func (w *work) forgetGone() {
	if len(w.selected) == 0 {
		return // the source was not seen, or the patterns are wrong
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

// Metrics renders the metrics of all jobs of a file, so far as they have run.
func Metrics(f *replicate.File, stateDir string) ([]byte, error) {
	var states []*record.State
	for i := range f.Jobs {
		st, err := record.Peek(stateDir, f.Jobs[i].Name).State()
		if err != nil {
			return nil, err
		}
		states = append(states, st)
	}
	return record.Metrics(states), nil
}

// WriteMetrics writes them to the file's Textfile. Of two jobs that end together
// neither writes over the other's news.
func WriteMetrics(ctx context.Context, f *replicate.File, stateDir string) error {
	err := record.Together(ctx, stateDir, func() error {
		text, err := Metrics(f, stateDir)
		if err != nil {
			return err
		}
		return record.Replace(f.Metrics.Textfile, text, 0o644)
	})
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
