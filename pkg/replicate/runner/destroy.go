package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/replicate"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// destroyAtOnce is how many snapshots one transaction destroys: it has to fit
// a transaction group beside what else the pool does. Larger and smaller ones
// were no faster for each snapshot.
const destroyAtOnce = 1000

// apply destroys what was found.
func (w *work) apply(ctx context.Context, p *replicate.Pruning) {
	if p.Error != "" {
		return
	}
	defer func() {
		if p.Error == "" {
			p.Done()
		}
	}()
	if len(p.Remove) == 0 {
		return
	}
	s, began := w.side(p.Side), time.Now()
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
	w.Log(fmt.Sprintf("%s: retention removed %s on %s in %s", w.job.Name, english.Plural(len(gone), "snapshot", ""), p.Side, time.Since(began).Round(time.Millisecond)))
}

// destroy destroys names in one transaction, and returns those that are gone.
// One that is held, has clones or is being sent stops the whole transaction:
// it is left out, and the others are tried again; where ZFS does not say which
// it is, by halves.
func (w *work) destroy(ctx context.Context, s side, names []string, p *replicate.Pruning) ([]string, error) {
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
				p.Stay(n)
			}
		}
		return w.destroy(ctx, s, rest, p)
	}
	if len(names) == 1 {
		p.Stay(names[0])
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

// forget destroys the job's bookmarks that nothing begins with any more.
func (w *work) forget(ctx context.Context, bookmarks []string) {
	if len(bookmarks) == 0 {
		return
	}
	if err := w.onSource(ctx, func(st site.Site) error { return st.Destroy(ctx, bookmarks) }); err != nil {
		w.note("bookmarks: %v", err)
		return
	}
	w.run.Pruned += len(bookmarks)
}
