package runner

import (
	"context"
	"errors"
	"slices"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/zfs"
)

// step is an idempotent change of a side that runs in order with others.
type step struct {
	change hosts.Change
	// needs is a step that must have succeeded before; nil = none.
	needs *step
	// always means that the end of the run's context does not prevent the step.
	always bool

	began   time.Time // start of the first step of its order
	ran     bool
	dropped bool // it did not run, because needs failed or the run was interrupted
	err     error
}

// done reports whether a step succeeded. A nil step has nothing to do.
func (st *step) done() bool { return st == nil || st.ran && st.err == nil }

// result returns the error of a step that needs no other. ctx is the context of runSteps.
func (st *step) result(ctx context.Context) error {
	if st.dropped {
		return context.Cause(ctx) // only an interruption drops such a step
	}
	return st.err
}

// failed reports whether a step failed or was dropped.
func (st *step) failed() bool { return st != nil && (st.err != nil || st.dropped) }

// alwaysTimeout limits the steps that continue after an interruption. A host may have become silent.
const alwaysTimeout = 2 * time.Minute

// runSteps runs steps in order, and in one round trip as long as they succeed. A failed step stops only
// the steps that need it.
func runSteps(ctx context.Context, s *session.Side, steps []*step) {
	began, on := time.Now(), ctx
	for {
		if on == ctx && ctx.Err() != nil {
			var cancel func()
			on, cancel = context.WithTimeout(context.WithoutCancel(ctx), alwaysTimeout)
			defer cancel()
		}
		steps = slices.DeleteFunc(slices.Clone(steps), func(st *step) bool {
			st.dropped = st.needs.failed() || ctx.Err() != nil && !st.always
			return st.dropped
		})
		if len(steps) == 0 {
			return
		}
		var changes []hosts.Change
		for _, st := range steps {
			st.began = began
			changes = append(changes, st.change)
		}
		done, err := hosts.Apply(on, s, changes)
		for _, st := range steps[:done] {
			st.ran = true
		}
		if err == nil {
			return
		}
		steps = steps[done:]
		if on == ctx && ctx.Err() != nil && steps[0].always {
			continue // it was interrupted
		}
		steps[0].ran, steps[0].err = true, err
		steps = steps[1:]
	}
}

// present returns the steps that are not nil.
func present(steps ...*step) []*step {
	return slices.DeleteFunc(steps, func(st *step) bool { return st == nil })
}

// holdStep returns a step that places holds, or nil if there are no names.
func holdStep(tag string, names []string) *step {
	if len(names) == 0 {
		return nil
	}
	return &step{change: hosts.OpHold.Change(hosts.Tagged{Tag: tag, Snapshots: names})}
}

// releaseStep returns a step that releases holds after others were placed, or nil if there are no names.
func releaseStep(tag string, names []string, placed *step) *step {
	if len(names) == 0 {
		return nil
	}
	return &step{change: hosts.OpRelease.Change(hosts.Tagged{Tag: tag, Snapshots: names}), needs: placed}
}

// bookmarkStep returns a step that creates bookmarks, or nil if there are none.
func bookmarkStep(names map[string]string) *step {
	if len(names) == 0 {
		return nil
	}
	return &step{change: hosts.OpBookmark.Change(names)}
}

// destroyStep returns a step that destroys versions, or nil if there are no names.
func destroyStep(names []string) *step {
	if len(names) == 0 {
		return nil
	}
	return &step{change: hosts.OpDestroy.Change(names)}
}

// unheld returns the snapshots of a holdStep or releaseStep that certainly have no hold.
func (st *step) unheld() []string {
	if st == nil || !st.ran {
		return nil
	}
	released := st.change.Op.Name() == hosts.OpRelease.Name() && st.err == nil
	refused := st.change.Op.Name() == hosts.OpHold.Name() && errors.Is(st.err, &zfs.Error{Kind: zfs.Permission})
	if released || refused { // ZFS checks permissions before it places the first hold
		return st.change.Args.(hosts.Tagged).Snapshots
	}
	return nil
}
