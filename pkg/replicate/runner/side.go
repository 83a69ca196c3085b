package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// side is what a job has on one host: its source, or a target. It carries out what
// was decided about it. What records, hooks and JSON are told of its errors names
// the keys of the job file.
type side struct {
	name     string // in records: replicate.SourceSide, or the target's
	at       endpoint.Endpoint
	target   *replicate.Target // nil of the source
	transfer *replicate.Transfer
	host     *hosts.Conn
}

func newSide(at *hosts.Set, name, where string, tr *replicate.Transfer) (*side, error) {
	e, err := endpoint.Parse(where)
	if err != nil {
		return nil, err
	}
	return &side{name: name, at: e, transfer: tr, host: at.Get(e.Host, &tr.Settings)}, nil
}

// targetName is the target's name, "" of the source.
func (s *side) targetName() string {
	if s.target == nil {
		return ""
	}
	return s.name
}

// do does what may be done twice.
func (s *side) do(ctx context.Context, f func(hosts.Host) error) error {
	return replicate.InKeys(s.host.Retry(ctx, f))
}

func (s *side) list(ctx context.Context, q hosts.ListQuery) (zfs.Listing, error) {
	l, err := s.host.List(ctx, q)
	return l, replicate.InKeys(err)
}

func (s *side) properties(ctx context.Context, names []string, properties ...string) (map[string]map[string]zfs.Property, error) {
	found, err := s.host.Properties(ctx, names, properties)
	return found, replicate.InKeys(err)
}

// created asks when snapshots were taken: by dataset and name.
func (s *side) created(ctx context.Context, snapshots []string) (map[string]map[string]time.Time, error) {
	if len(snapshots) == 0 {
		return map[string]map[string]time.Time{}, nil
	}
	taken, err := s.host.Created(ctx, snapshots)
	if err != nil {
		return nil, replicate.InKeys(err)
	}
	out := map[string]map[string]time.Time{}
	for full, at := range taken {
		dataset, name, _ := strings.Cut(full, "@")
		if out[dataset] == nil {
			out[dataset] = map[string]time.Time{}
		}
		out[dataset][name] = at
	}
	return out, nil
}

// place places holds. After an error it returns the names that carry none for sure.
func (s *side) place(ctx context.Context, tag string, names []string) (bare []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	err = s.do(ctx, func(st hosts.Host) error { return st.Hold(ctx, tag, names) })
	if errors.Is(err, &zfs.Error{Kind: zfs.Permission}) { // asked before the first is placed
		bare = names
	}
	return bare, during("hold", err)
}

// release takes holds off, and returns the names that carry none for sure.
func (s *side) release(ctx context.Context, tag string, names []string) (bare []string, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	if err = s.do(ctx, func(st hosts.Host) error { return st.Release(ctx, tag, names) }); err == nil {
		bare = names
	}
	return bare, during("release", err)
}

func during(what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// showHeld finds out what is held or has clones, for showing. To destroy, ZFS
// itself says so, faster than asking it about every snapshot. What is only coming is
// not; freed are the holds of the job itself that will have moved on.
func (s *side) showHeld(ctx context.Context, p *replicate.Pruning, coming map[string]string, freed map[string]uint64) {
	there := slices.DeleteFunc(slices.Clone(p.Remove), func(n string) bool { return coming[n] != "" })
	if len(there) == 0 {
		return
	}
	props, err := s.properties(ctx, there, "userrefs", "clones")
	if err != nil {
		p.Error = err.Error()
		return
	}
	p.Remove = slices.DeleteFunc(p.Remove, func(n string) bool {
		if coming[n] != "" {
			return false
		}
		of := props[n]
		refs, _ := strconv.ParseUint(of["userrefs"].Value, 10, 64) // of a snapshot that is there, a number
		held := refs > freed[n] || strings.Trim(of["clones"].Value, "-") != ""
		if held {
			p.Keep(n)
		}
		return held || of == nil
	})
}

// destroyAtOnce is how many snapshots one transaction destroys: it has to fit
// a transaction group beside what else the pool does. Larger and smaller ones
// were no faster for each snapshot.
const destroyAtOnce = 1000

// apply destroys what was found, and tells how many are gone.
func (s *side) apply(ctx context.Context, p *replicate.Pruning) int {
	if p.Error != "" {
		return 0
	}
	var gone []string
	for some := range slices.Chunk(p.Remove, destroyAtOnce) {
		done, err := s.destroy(ctx, some, p)
		gone = append(gone, done...)
		if err != nil {
			p.Error = err.Error()
			break
		}
	}
	if len(p.Remove) > 0 {
		p.Remove = gone
	}
	if p.Error == "" {
		p.Done()
	}
	return len(gone)
}

// destroy destroys names in one transaction, and returns those that are gone.
// One that is held, has clones or is being sent stops the whole transaction:
// it is left out, and the others are tried again; where ZFS does not say which
// it is, by halves.
func (s *side) destroy(ctx context.Context, names []string, p *replicate.Pruning) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	err := s.do(ctx, func(st hosts.Host) error { return st.Destroy(ctx, names) })
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
				p.Keep(n)
			}
		}
		return s.destroy(ctx, rest, p)
	}
	if len(names) == 1 {
		p.Keep(names[0])
		return nil, nil
	}
	a, err := s.destroy(ctx, names[:len(names)/2], p)
	if err != nil {
		return a, err
	}
	b, err := s.destroy(ctx, names[len(names)/2:], p)
	return slices.Concat(a, b), err
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
