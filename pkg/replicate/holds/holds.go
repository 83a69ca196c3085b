// Package holds finds the holds and drill clones of jobs, and releases those that nothing needs.
package holds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/remedy"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/disk"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// Held is a hold, or a drill clone, that a job placed.
type Held struct {
	Host     string `json:"host"` // "" for the local host
	Snapshot string `json:"snapshot"`
	Tag      string `json:"tag"`
	// Clone is the drill clone that keeps the snapshot. It replaces the tag.
	Clone string `json:"clone,omitempty"`
	Job   string `json:"job"`
	// Stale reports that nothing needs the hold: the file lacks its job or target, or the hold is
	// not on the incremental source in the state.
	Stale    bool `json:"stale"`
	Released bool `json:"released"`
}

// List lists the holds and drill clones of all jobs in the file and in the records of earlier
// jobs. With release it removes the stale ones.
func List(ctx context.Context, e *session.Env, f *replicate.File, release bool) ([]*Held, error) {
	places, errs := places(e, f)
	var out []*Held
	for _, p := range places {
		if p.Target != nil && !disk.Imported(ctx, p) {
			e.Log(fmt.Sprintf("%s is skipped: its disk is not imported", p.At))
			continue
		}
		found, err := heldAt(ctx, e, f, p, release)
		out = append(out, found...)
		if err == nil {
			found, err = ofRenamed(ctx, e, f, p, places, release)
			out = append(out, found...)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("holds of %s: %w", p.At.Name, err))
		}
	}
	return out, errors.Join(errs...)
}

// ofRenamed is heldAt for the trees that a switch or a run renamed, and that had the name of p. It
// skips trees that another place contains. A restricted key for p does not list them.
func ofRenamed(ctx context.Context, e *session.Env, f *replicate.File, p *session.Side, places []*session.Side, release bool) (out []*Held, err error) {
	parent := zfs.ParentOf(p.At.Name)
	if parent == "" { // a pool is never renamed
		return nil, nil
	}
	l, err := p.List(ctx, hosts.ListQuery{Dataset: parent, Recursive: true, Identity: true, NoAncestors: true})
	if errors.Is(err, hosts.ErrForbidden) {
		e.Log(fmt.Sprintf("%s: datasets that were renamed from it are not listed: %v", p.At, err))
		return nil, nil
	}
	for _, d := range l.Datasets {
		before, renamed := zfs.NameBeforeRename(d.Name)
		listed := slices.ContainsFunc(places, func(o *session.Side) bool { return o.At.Host == p.At.Host && strings.HasPrefix(d.Name, o.At.Name+"/") })
		if !renamed || before != p.At.Name || listed || err != nil {
			continue
		}
		q := *p
		q.At.Name = d.Name
		var found []*Held
		found, err = heldAt(ctx, e, f, &q, release)
		out = append(out, found...)
	}
	return out, err
}

// places returns the sources and targets of the file's jobs, and of recorded jobs that are no
// longer in the file. An error concerns one place: the others are valid.
func places(e *session.Env, f *replicate.File) (out []*session.Side, errs []error) {
	add := func(source, at string, tr *replicate.Transfer) error {
		p, err := session.NewSide(e.Hosts, "", at, tr)
		if err != nil {
			return err
		}
		if source != "" {
			from, err := endpoint.Parse(source)
			if err != nil {
				return err
			}
			if p.At.Name, err = plan.TargetName(from.Name, p.At.Name); err != nil {
				return err
			}
		}
		if !slices.ContainsFunc(out, func(o *session.Side) bool { return o.At == p.At }) {
			out = append(out, p)
		}
		return nil
	}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		if _, err := statedir.Peek(e.StateDir, j.Name).State(); err != nil {
			errs = append(errs, fmt.Errorf("no hold of job %q is known to be stale: %w", j.Name, err))
		}
		errs = append(errs, add("", j.Source, &j.Transfer))
		for k := range j.Targets {
			before := len(out)
			errs = append(errs, add(j.Source, j.Targets[k].To, j.TransferTo(&j.Targets[k])))
			if len(out) > before && j.Targets[k].Disk != nil {
				out[before].Target = &j.Targets[k]
			}
		}
	}
	dirs, err := os.ReadDir(e.StateDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, d := range dirs {
		if !d.IsDir() || f.Has(d.Name()) {
			continue
		}
		st, err := statedir.Peek(e.StateDir, d.Name()).State()
		if err == nil && st.LastRun != nil {
			err = add("", st.LastRun.Source, &replicate.Transfer{})
			for _, t := range st.LastRun.Targets {
				err = errors.Join(err, add(st.LastRun.Source, t.To, &replicate.Transfer{}))
			}
		}
		if err != nil { // another user may own the record
			errs = append(errs, fault.Failf("if nothing needs its holds, delete them: "+remedy.Command("rm", "-r", filepath.Join(e.StateDir, d.Name())), "records of job %q, which is not in the job file: %w", d.Name(), err))
		}
	}
	return out, errs
}

// heldAt returns the holds and clones of a place.
func heldAt(ctx context.Context, e *session.Env, f *replicate.File, p *session.Side, release bool) ([]*Held, error) {
	l, err := p.List(ctx, hosts.ListQuery{Dataset: p.At.Name, Recursive: true, Versions: true})
	if err != nil {
		return nil, err
	}
	names := l.SnapshotNames()
	tags, err := p.Host.Holds(ctx, names)
	if err != nil {
		return nil, err
	}
	// After the holds, because a running job saves its holds before it places them.
	of := needed(e, f)
	var out []*Held
	stale := map[string][]*Held{}
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		for _, tag := range tags[name] {
			job, ours := replicate.JobOfTag(tag)
			if !ours {
				continue
			}
			needs, known := of[tag]
			h := &Held{Host: p.At.Host, Snapshot: name, Tag: tag, Job: job, Stale: !known && !f.OnOtherHosts(job) && !f.HeldByOthers(tag) || known && !needs(name)}
			out = append(out, h)
			if h.Stale {
				stale[tag] = append(stale[tag], h)
			}
		}
	}
	clones, err := drillClones(ctx, e, f, p, names, release)
	if out = append(out, clones...); err != nil || !release {
		return out, err
	}
	for _, tag := range slices.Sorted(maps.Keys(stale)) {
		var destroyed []string
		for _, h := range stale[tag] {
			destroyed = append(destroyed, h.Snapshot)
		}
		if err := p.Release(ctx, tag, destroyed); err != nil {
			return out, err
		}
		for _, h := range stale[tag] {
			h.Released = true
		}
	}
	return out, nil
}

// needed returns, by tag, whether a job of the file needs its hold on a snapshot. No hold of a job whose state
// cannot be read is known to be stale.
func needed(e *session.Env, f *replicate.File) map[string]func(snapshot string) bool {
	out := map[string]func(string) bool{}
	for i := range f.Jobs {
		j := &f.Jobs[i]
		st, err := statedir.Peek(e.StateDir, j.Name).State()
		if err == nil {
			var turned *replicate.Job
			if turned, err = jobfile.From(j, st.Place); err == nil {
				j = turned
			}
		}
		for k := range j.Targets {
			t := &j.Targets[k]
			if out[j.Tag(t.Name)] = func(string) bool { return true }; err == nil {
				out[j.Tag(t.Name)] = st.NeededHolds(j, t)
			}
		}
	}
	return out
}

// readCloneAge is the age from which a clone for reading files is a leftover of a killed process.
const readCloneAge = 24 * time.Hour

// drillClones returns the drill clones of snapshots. Clones of jobs in the file are not stale: a
// drill uses them, or the next drill removes them.
func drillClones(ctx context.Context, e *session.Env, f *replicate.File, p *session.Side, snapshots []string, release bool) ([]*Held, error) {
	found, err := p.Properties(ctx, snapshots, "clones")
	if err != nil {
		return nil, err
	}
	var names []string
	for _, of := range found {
		names = append(names, slices.DeleteFunc(strings.Split(of["clones"].Value, ","), func(n string) bool { return !zfs.IsDrillClone(n) })...)
	}
	slices.Sort(names)
	var out []*Held
	for _, name := range names {
		found, err := p.Properties(ctx, []string{name}, "origin", zfs.DrillCloneProperty)
		if err != nil && !errors.Is(err, hosts.ErrForbidden) { // a restricted key hides clones it may not use
			return out, err
		}
		mark := found[name][zfs.DrillCloneProperty]
		if !mark.Local() {
			continue // not made by zxfer
		}
		h := &Held{Host: p.At.Host, Snapshot: found[name]["origin"].Value, Clone: name, Job: mark.Value, Stale: !f.Has(mark.Value)}
		if mark.Value == zfs.ReadCloneMark {
			found, err := p.Properties(ctx, []string{name}, "creation")
			if err != nil && !errors.Is(err, hosts.ErrForbidden) {
				return out, err
			}
			created, err := strconv.ParseInt(found[name]["creation"].Value, 10, 64)
			h.Stale = err == nil && e.Now().Sub(time.Unix(created, 0)) > readCloneAge
		}
		if out = append(out, h); !h.Stale || !release {
			continue
		}
		dataset, _, _ := strings.Cut(h.Snapshot, "@")
		if err := p.RemoveClones(ctx, zfs.DrillClones{Job: h.Job, Datasets: []string{dataset}}); err != nil {
			return out, err
		}
		h.Released = true
	}
	return out, nil
}
