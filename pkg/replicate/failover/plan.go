package failover

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// steps lists the changes of a fail over in their order.
type steps struct{ all []*step }

// step is one change. It may be repeated.
type step struct {
	host, text string
	do         func(context.Context) error
	// undo undoes the steps before this one after it failed, and returns the error to report; nil = nothing is undone.
	undo func(context.Context, error) error
	done bool
}

// steps returns the steps for the result.
func (p *steps) steps() []Step {
	out := []Step{}
	for _, s := range p.all {
		out = append(out, Step{Host: s.host, Text: s.text, Done: s.done})
	}
	return out
}

// add appends a step on a side.
func (p *steps) add(s *session.Side, text string, do func(context.Context) error) *step {
	p.all = append(p.all, &step{host: s.Host.Label(), text: text, do: do})
	return p.all[len(p.all)-1]
}

// set appends a step that changes properties of a dataset.
func (p *steps) set(s *session.Side, dataset string, set map[string]string, revert ...string) {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		words = append(words, name+"="+set[name])
	}
	text := ""
	if len(words) > 0 {
		text = zfs.CommandLine(slices.Concat([]string{"zfs", "set"}, words, []string{dataset}))
	}
	for _, name := range revert {
		if text != "" {
			text += "; "
		}
		text += zfs.CommandLine([]string{"zfs", "inherit", name, dataset})
	}
	p.add(s, text, func(ctx context.Context) error {
		return hosts.Run(ctx, s, hosts.OpSetProperties, zfs.PropertyChange{Dataset: dataset, Set: set, Revert: revert})
	})
}

// forget appends a step that removes the records of the source from a dataset, if it has any. will names records
// that it will have by then.
func (p *steps) forget(s *session.Side, d *zfs.Dataset, will ...string) {
	var names []string
	for _, name := range []string{zfs.OriginProperty, zfs.SettingsProperty} {
		if d.Properties[name].Local() || slices.Contains(will, name) {
			names = append(names, name)
		}
	}
	if len(names) > 0 {
		p.set(s, d.Name, nil, names...)
	}
}

// carryOut carries out the steps that are not done. After an error, the same command continues.
func (p *steps) carryOut(ctx context.Context, job string, log func(string)) error {
	any := slices.ContainsFunc(p.all, func(s *step) bool { return s.done })
	for _, s := range p.all {
		if s.done {
			continue
		}
		if ctx.Err() != nil {
			return fault.Interrupt("run the same command again, to complete it", fmt.Errorf("job %q: interrupted: %w", job, context.Cause(ctx)))
		}
		line := s.host + ": " + s.text
		log(job + ": " + line)
		err := s.do(ctx)
		if err != nil && s.undo != nil && ctx.Err() == nil {
			err = s.undo(ctx, err)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", line, err)
			if any && fault.ClassOf(err) == fault.Refused {
				err = fault.Failf(cmp.Or(fault.HintOf(err), "run the same command again, to complete it"), "%w", err)
			}
			return err
		}
		s.done, any = true, true
	}
	return nil
}

// undone marks all steps as not done.
func (p *steps) undone() {
	for _, s := range p.all {
		s.done = false
	}
}

// carryOut carries out the plan.
func (f *failover) carryOut(ctx context.Context) error {
	return f.plan.carryOut(ctx, f.session.Job.Name, f.session.Env.Log)
}

// note adds a note to the result.
func (f *failover) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(f.notes, text) { // a switch plans twice
		f.notes = append(f.notes, text)
	}
}

// hold appends a step that holds common snapshots with the tag of a target, so that later sends are
// incremental. guids is nil to hold the most recent snapshots.
func (f *failover) hold(s *session.Side, tag string, datasets []*zfs.Dataset, guids map[uint64]bool, record func([]string)) (names []string) {
	for _, d := range datasets {
		all := d.Snapshots()
		for _, v := range slices.Backward(all) {
			if guids == nil || guids[v.GUID] {
				names = append(names, v.In(d.Name))
				break
			}
		}
	}
	if len(names) > 0 {
		f.plan.add(s, "hold "+english.Plural(len(names), "common snapshot", ""), func(ctx context.Context) error {
			f.recordHolds(names, record)
			return s.Place(ctx, tag, names)
		})
	}
	return names
}

// recordHolds records snapshots that may have the job's hold. Without the record, holds --gc releases them, unless
// this host has no records of the job.
func (f *failover) recordHolds(names []string, record func([]string)) {
	if f.session.State.LastRun == nil {
		return
	}
	record(names)
	if err := f.session.Store.Save(f.session.State); err != nil {
		f.note("cannot record holds: %v", err)
	}
}
