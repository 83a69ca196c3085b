package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// watchInterval is how often a run checks whether a pool is suspended. A check reads two files.
const watchInterval = time.Second

// errSuspended is the error of a pool that lost its devices. Commands on the pool block, or fail.
var errSuspended = errors.New("it is suspended, because its disk is gone")

// watch returns a context that ends when the pool is suspended, with the error as its cause.
func (d *Disk) watch(ctx context.Context) (context.Context, func()) {
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
func (d *Disk) suspended(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	f, err := hosts.Call(ctx, d.side.Host, hosts.OpFindPools, zfs.PoolQuery{Pool: d.State.Pool})
	return err == nil && slices.ContainsFunc(f.Imported, func(p zfs.ImportedPool) bool {
		return p.GUID == d.State.GUID && p.Health == zfs.PoolSuspended
	})
}

// Lost records that the pool was suspended during the run, if any part failed and it was. It returns the
// error of the target, which is whole otherwise.
func (d *Disk) Lost(ctx context.Context, part, whole error) error {
	if d == nil || part == nil || !errors.Is(context.Cause(ctx), errSuspended) && !d.suspended(context.WithoutCancel(ctx)) {
		return whole
	}
	err := fault.Interrupt(d.clearHint(), fmt.Errorf("pool %s: %w", d.State.Pool, errSuspended))
	d.set.state.Lock() // another target's batch may save the state
	defer d.set.state.Unlock()
	_ = d.State.Next(decide.SeenSuspended, d.set.started) // observations are never refused
	d.Fail(err)
	return d.Err
}

// Imported reports whether any disk of a target is imported, and not another pool with its name.
func Imported(ctx context.Context, p *session.Side) bool {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	id := p.Target.Identity()
	found, err := hosts.Call(ctx, p.Host, hosts.OpFindPools, zfs.PoolQuery{})
	return err == nil && slices.ContainsFunc(found.Imported, func(i zfs.ImportedPool) bool {
		return i.Name == id.Pool && i.Health != zfs.PoolSuspended && slices.Contains(id.Siblings, i.GUID)
	})
}
