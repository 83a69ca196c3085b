package runner

import (
	"context"
	"errors"

	"zxfer/pkg/replicate"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// hold moves a target's holds, and bookmarks what was sent. What fails is noted:
// the data did arrive.
func (w *work) hold(ctx context.Context, t *targetWork, h *replicate.Holding) {
	for source, a := range h.Arrivals {
		w.state.Dataset(source).Targets[t.Name] = a
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
	source := &shift{Shift: h.Source, do: w.onSource}
	there := &shift{Shift: h.There, do: func(ctx context.Context, f func(site.Site) error) error { return w.onTarget(ctx, t, f) }}
	tag := replicate.Tag(w.job.Name, t.Name)
	try("hold", source.hold(ctx, tag))
	try("hold", there.hold(ctx, tag))
	if len(h.Bookmarks) > 0 {
		try("bookmark", w.onSource(ctx, func(st site.Site) error { return st.Bookmark(ctx, h.Bookmarks) }))
	}
	try("release", source.release(ctx, tag))
	try("release", there.release(ctx, tag))
	h.Placed(source.gone, there.gone, whole)
}

// shift carries out a Shift on its host.
type shift struct {
	replicate.Shift
	do func(context.Context, func(site.Site) error) error
	// gone are the names that carry no hold for sure.
	gone map[string]bool
	// refused tells that the new holds are not there: the old ones stay.
	refused bool
}

func (s *shift) hold(ctx context.Context, tag string) error {
	if len(s.Place) == 0 {
		return nil
	}
	err := s.do(ctx, func(st site.Site) error { return st.Hold(ctx, tag, s.Place) })
	s.refused = err != nil
	if errors.Is(err, &zfs.Error{Kind: zfs.Permission}) { // asked before the first is placed
		s.bare(s.Place)
	}
	return err
}

func (s *shift) release(ctx context.Context, tag string) error {
	if s.refused || len(s.Drop) == 0 {
		return nil
	}
	err := s.do(ctx, func(st site.Site) error { return st.Release(ctx, tag, s.Drop) })
	if err == nil {
		s.bare(s.Drop)
	}
	return err
}

// bare notes names that carry no hold.
func (s *shift) bare(names []string) {
	if s.gone == nil {
		s.gone = map[string]bool{}
	}
	for _, n := range names {
		s.gone[n] = true
	}
}
