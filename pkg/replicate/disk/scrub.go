package disk

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

// Scrub scrubs the pool if its scrub is due, and waits for the end. An interrupted scrub continues after
// the next import.
func (d *Disk) Scrub(ctx context.Context) error {
	if !d.Usable() || d.Err != nil || ctx.Err() != nil {
		return nil
	}
	if err := d.scrub(ctx); err != nil {
		err = fmt.Errorf("scrub of pool %s: %w", d.State.Pool, err)
		return d.Lost(ctx, err, err)
	}
	return nil
}

func (d *Disk) scrub(ctx context.Context) error {
	if d.side.Target.Disk.Scrub == 0 {
		return nil
	}
	ctx, stop := d.watch(ctx)
	defer stop()
	damage, err := d.scan(ctx)
	if err != nil || !d.State.ScrubDue(d.side.Target.Disk.Scrub, d.set.session.Env.Now()) && !damage.Scan.Running {
		return err
	}
	if err := d.State.Next(decide.DiskScrub, d.set.started); err != nil {
		return err
	}
	if err := d.set.session.Store.Save(d.set.session.State); err != nil {
		return err
	}
	if !damage.Scan.Running {
		if err := hosts.Run(ctx, d.side.Host, hosts.OpScrub, d.side.At.Name); err != nil {
			return err
		}
	}
	defer d.set.session.Activity("scrubbing pool %s", d.State.Pool)()
	for logged, began := 0.0, d.set.session.Env.Now(); ; {
		if damage, err = d.scan(ctx); err != nil {
			return err
		}
		switch {
		case damage.Scan.Paused:
			return fault.Failf(d.side.Host.Command("zpool", "scrub", d.State.Pool), "it is paused")
		case !damage.Scan.Running && damage.Scan.Scrubbed(time.Local).IsZero():
			return fmt.Errorf("it did not finish: %q", damage.Scan.Text)
		case !damage.Scan.Running:
			d.State.Scrubbed = began
			d.set.session.Env.Log(fmt.Sprintf("%s: scrubbed pool %s in %s: %s", d.set.session.Job.Name, d.State.Pool, d.set.session.Env.Now().Sub(began).Round(time.Second), damage.Scan.Text))
			d.askAgain()
			return d.State.Next(decide.DiskScrubbed, d.set.started)
		case damage.Scan.Percent >= logged+10:
			logged = damage.Scan.Percent
			d.set.session.Env.Log(fmt.Sprintf("%s: scrubbing pool %s: %.0f%% done", d.set.session.Job.Name, d.State.Pool, logged))
		}
		if !retry.Sleep(ctx, watchInterval) {
			return context.Cause(ctx)
		}
	}
}

// scan returns the pool's scan and errors, and learns when the last scrub completed.
func (d *Disk) scan(ctx context.Context) (zfs.Damage, error) {
	damage, err := hosts.Call(ctx, d.side.Host, hosts.OpDamage, d.State.Pool)
	if at := damage.Scan.Scrubbed(time.Local); at.After(d.State.Scrubbed) && !at.After(d.set.session.Env.Now()) {
		d.State.Scrubbed = at
	}
	return damage, err
}

// askAgain makes the run ask for the data errors that the scrub found.
func (d *Disk) askAgain() {
	if p := d.set.session.State.Pools[d.side.Name]; p != nil {
		p.Asked = time.Time{}
	}
}
