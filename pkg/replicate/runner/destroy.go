package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// destroyAtOnce is how many snapshots one transaction destroys: it has to fit
// a transaction group beside what else the pool does. Larger and smaller ones
// were no faster for each snapshot.
const destroyAtOnce = 1000

// apply destroys what was found.
func (w *work) apply(ctx context.Context, p *Pruning) {
	if p.Error != "" {
		return
	}
	defer func() {
		for _, h := range p.pruned {
			if p.Error == "" {
				h.Removed()
			}
		}
	}()
	if len(p.Remove) == 0 {
		return
	}
	s := w.side(nil)
	for _, t := range w.targets {
		if t.Name == p.Side {
			s = w.side(t)
		}
	}
	began := time.Now()
	var gone []string
	for some := range slices.Chunk(p.Remove, destroyAtOnce) {
		done, err := w.destroy(ctx, s, some, p)
		gone = append(gone, done...)
		if err != nil {
			p.Error = err.Error()
			break
		}
	}
	p.Remove = gone
	*s.count += len(gone)
	w.Log(fmt.Sprintf("%s: retention removed %s on %s in %s", w.job.Name, english.Plural(len(gone), "snapshot", ""), s.name, time.Since(began).Round(time.Millisecond)))
}

// destroy destroys names in one transaction, and returns those that are gone.
// One that is held, has clones or is being sent stops the whole transaction:
// it is left out, and the others are tried again; where ZFS does not say which
// it is, by halves.
func (w *work) destroy(ctx context.Context, s *side, names []string, p *Pruning) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	err := s.do(ctx, func(st site.Site) error { return st.Destroy(ctx, names) })
	if err == nil {
		return names, nil
	}
	if !errors.Is(err, &zfs.Error{Kind: zfs.Busy}) {
		return nil, err
	}
	busy := busyOf(err)
	rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return busy[n] })
	if len(rest) < len(names) {
		for _, n := range names {
			if busy[n] {
				p.stays(n)
			}
		}
		return w.destroy(ctx, s, rest, p)
	}
	if len(names) == 1 {
		p.stays(names[0])
		return nil, nil
	}
	a, err := w.destroy(ctx, s, names[:len(names)/2], p)
	if err != nil {
		return a, err
	}
	b, err := w.destroy(ctx, s, names[len(names)/2:], p)
	return append(slices.Clone(a), b...), err
}

// busyOf are the subjects of all errors of kind Busy in an error's tree.
func busyOf(err error) map[string]bool {
	out := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if e, ok := err.(*zfs.Error); ok && e.Kind == zfs.Busy {
			out[e.Subject] = true
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			if inner := u.Unwrap(); inner != nil {
				walk(inner)
			}
		case interface{ Unwrap() []error }:
			for _, inner := range u.Unwrap() {
				walk(inner)
			}
		}
	}
	walk(err)
	return out
}

// pruneBookmarks removes the job's bookmarks that are older than some target's
// base and no target's own: no increment begins with them any more. Of a target
// that is away for long there is but one, and not one for every run.
func (w *work) pruneBookmarks(ctx context.Context) {
	var gone []string
	for _, d := range w.listing.Datasets {
		bases, newest := map[uint64]bool{}, uint64(0)
		known := len(w.targets) > 0
		for _, t := range w.targets {
			of, at := map[uint64]bool{}, uint64(0)
			w.addBases(of, t, d)
			for _, v := range d.Versions {
				if of[v.GUID] {
					bases[v.GUID], at = true, max(at, v.CreateTXG)
				}
			}
			known, newest = known && at != 0, max(newest, at)
		}
		if !known {
			continue
		}
		for _, v := range d.Versions {
			if v.Kind == zfs.Bookmark && v.CreateTXG < newest && !bases[v.GUID] && strings.HasPrefix(v.Name, tagPrefix+w.job.Name+":") {
				gone = append(gone, v.In(d.Name))
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	if err := w.onSource(ctx, func(st site.Site) error { return st.Destroy(ctx, gone) }); err != nil {
		w.note("bookmarks: %v", err)
		return
	}
	w.run.Pruned += len(gone)
}
