package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// watchInterval is how often a run checks whether a pool is suspended. A check reads two files.
const watchInterval = time.Second

// errSuspended is the error of a pool that lost its devices. Commands on the pool block, or fail.
var errSuspended = errors.New("it is suspended, because its disk is gone")

// watch returns a context that ends when the pool is suspended, with the error as its cause.
func (d *diskRun) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for retry.Sleep(ctx, watchInterval) {
			if d.suspended(ctx) {
				cancel(errSuspended)
				return
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done } // after a suspension, the cause remains
}

// suspended reports whether the pool is suspended.
func (d *diskRun) suspended(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	f, err := hosts.Call(ctx, d.Host, hosts.OpFindPools, zfs.PoolQuery{Pool: d.state.Pool})
	return err == nil && slices.ContainsFunc(f.Imported, func(p zfs.ImportedPool) bool {
		return p.GUID == d.state.GUID && p.Health == zfs.PoolSuspended
	})
}

// lost records that the pool was suspended during the run, if any part failed and it was. It returns the
// error of the target, which is whole otherwise.
func (d *diskRun) lost(ctx context.Context, part, whole error) error {
	if d == nil || part == nil || !errors.Is(context.Cause(ctx), errSuspended) && !d.suspended(context.WithoutCancel(ctx)) {
		return whole
	}
	err := fault.Interrupt(d.clearHint(), fmt.Errorf("pool %s: %w", d.state.Pool, errSuspended))
	d.shared.Lock() // another target's batch may save the state
	defer d.shared.Unlock()
	_ = d.state.Next(decide.SeenSuspended, d.run.Started) // observations are never refused
	d.fail(err)
	return d.err
}
