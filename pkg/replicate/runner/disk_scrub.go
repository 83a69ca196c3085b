package runner

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

// scrubDisks scrubs the pools whose scrub is due, and waits for the end. An interrupted scrub continues
// after the next import. A switch waits for no scrub.
func (w *jobRun) scrubDisks(ctx context.Context) {
	for i, t := range w.session.Targets {
		d := w.disk(t)
		if w.only != "" || d == nil || !d.state.State.Usable() || d.err != nil || ctx.Err() != nil {
			continue
		}
		if err := d.scrub(ctx); err != nil {
			err = fmt.Errorf("scrub of pool %s: %w", d.state.Pool, err)
			w.failTarget(i, d.lost(ctx, err, err))
		}
	}
}

func (d *diskRun) scrub(ctx context.Context) error {
	if d.Target.Disk.Scrub == 0 {
		return nil
	}
	ctx, stop := d.watch(ctx)
	defer stop()
	damage, err := d.scan(ctx)
	if err != nil || !d.state.ScrubDue(d.Target.Disk.Scrub, d.Env.Now()) && !damage.Scan.Running {
		return err
	}
	if err := d.state.Next(decide.DiskScrub, d.run.Started); err != nil {
		return err
	}
	if err := d.session.Store.Save(d.jobRun.session.State); err != nil {
		return err
	}
	if !damage.Scan.Running {
		if err := hosts.Run(ctx, d.Host, hosts.OpScrub, d.At.Name); err != nil {
			return err
		}
	}
	defer d.session.Activity("scrubbing pool %s", d.state.Pool)()
	for logged, began := 0.0, d.Env.Now(); ; {
		if damage, err = d.scan(ctx); err != nil {
			return err
		}
		switch {
		case damage.Scan.Paused:
			return fault.Failf(d.Host.Command("zpool", "scrub", d.state.Pool), "it is paused")
		case !damage.Scan.Running && damage.Scan.Scrubbed(time.Local).IsZero():
			return fmt.Errorf("it did not finish: %q", damage.Scan.Text)
		case !damage.Scan.Running:
			d.state.Scrubbed = began
			d.Env.Log(fmt.Sprintf("%s: scrubbed pool %s in %s: %s", d.session.Job.Name, d.state.Pool, d.Env.Now().Sub(began).Round(time.Second), damage.Scan.Text))
			d.askAgain()
			return d.state.Next(decide.DiskScrubbed, d.run.Started)
		case damage.Scan.Percent >= logged+10:
			logged = damage.Scan.Percent
			d.Env.Log(fmt.Sprintf("%s: scrubbing pool %s: %.0f%% done", d.session.Job.Name, d.state.Pool, logged))
		}
		if !retry.Sleep(ctx, watchInterval) {
			return context.Cause(ctx)
		}
	}
}

// scan returns the pool's scan and errors, and learns when the last scrub completed.
func (d *diskRun) scan(ctx context.Context) (zfs.Damage, error) {
	damage, err := hosts.Call(ctx, d.Host, hosts.OpDamage, d.state.Pool)
	if at := damage.Scan.Scrubbed(time.Local); at.After(d.state.Scrubbed) && !at.After(d.Env.Now()) {
		d.state.Scrubbed = at
	}
	return damage, err
}

// askAgain makes the run ask for the data errors that the scrub found.
func (d *diskRun) askAgain() {
	if p := d.jobRun.session.State.Pools[d.Name]; p != nil {
		p.Asked = time.Time{}
	}
}
