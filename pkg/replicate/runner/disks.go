package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/retry"
	"zxfer/pkg/zfs"
)

const (
	// findTimeout limits the search for pools. zpool(8) blocks while another command waits for a
	// suspended pool.
	findTimeout = 2 * time.Minute
	// assembleTimeout is how long a run waits for the other devices of a pool. They appear one
	// after another.
	assembleTimeout = 30 * time.Second
	// exportTimeout limits the export, which continues after an interruption.
	exportTimeout = 2 * time.Minute
	// exportRetries is how often an export is repeated while the pool is busy. udev opens volumes for
	// a moment.
	exportRetries = 4
)

// diskRun is the disk of a target during a run.
type diskRun struct {
	*jobRun
	*side
	state  *replicate.DiskState
	err    error  // why the run cannot use the disk, nil if it can or if the disk is away
	unlock func() // lets other jobs use the disk; nil = not locked
	// found is the result of the last search. unknown reports that it failed.
	found   zfs.FoundPools
	unknown bool
}

// skipped returns why a command does not use the disk.
func (d *diskRun) skipped() string {
	if d.err != nil {
		return fmt.Sprintf("%s is skipped: %v", d.Name, d.err)
	}
	return fmt.Sprintf("%s is skipped: the disk (%s) is %s", d.Name, d.state, d.state.State)
}

// disk returns the disk of a target, or nil.
func (w *jobRun) disk(t *side) *diskRun { return w.disks[t.Name] }

// absent reports whether a target is on a disk that the run does not use.
func (w *jobRun) absent(t *side) bool {
	d := w.disk(t)
	return d != nil && !d.state.State.Usable()
}

// findDisks observes the disks of all targets. It changes only the state.
func (w *jobRun) findDisks(ctx context.Context) {
	w.disks = map[string]*diskRun{}
	searched := map[string]*diskRun{} // by directories: a search reads all devices
	for _, t := range w.session.Targets {
		if t.Target.Disk == nil {
			continue
		}
		d := &diskRun{jobRun: w, side: t, state: w.session.State.Disk(t.Target, w.run.Started)}
		w.disks[t.Name], t.Watch = d, d.watch
		key := strings.Join(t.Target.Disk.DirectoriesOrDefault(), "\x00")
		if before := searched[key]; before != nil {
			d.see(&before.found)
			continue
		}
		if d.observe(ctx); !d.unknown {
			searched[key] = d
		}
	}
}

// observe searches for the disk.
func (d *diskRun) observe(ctx context.Context) {
	found, err := d.find(ctx)
	if d.unknown = err != nil; d.unknown {
		_ = d.state.Next(decide.SeenAbsent, d.run.Started) // observations are never refused
		d.fail(fmt.Errorf("cannot search for pools: %w", err))
		return
	}
	d.see(&found)
}

func (d *diskRun) find(ctx context.Context) (zfs.FoundPools, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	defer d.session.Activity("searching for %s", d.state)()
	q := zfs.PoolQuery{Directories: d.Target.Disk.DirectoriesOrDefault()}
	if d.session.Job.User != "" && !d.Target.Disk.Import { // zpool import requires root
		q.Directories = nil
	}
	return hosts.Call(ctx, d.Host, hosts.OpFindPools, q)
}

// see applies what the host's pools mean for the disk.
func (d *diskRun) see(found *zfs.FoundPools) {
	d.found = *found
	id := d.Target.Identity()
	event, why := id.Observe(found)
	_ = d.state.Next(event, d.run.Started) // observations are never refused
	d.err, d.state.Reason, d.state.Hint = nil, "", ""
	switch event {
	case decide.SeenForeign:
		d.fail(fault.Refusef("if the disk belongs to this target, add the GUID to disk.pools\notherwise, detach the disk or rename its pool", "%s", why))
	case decide.SeenSuspended:
		d.fail(fault.Failf(d.clearHint(), "pool %s: %w", d.state.Pool, errSuspended))
	}
}

// clearHint returns the steps that recover a suspended pool.
func (d *diskRun) clearHint() string {
	return "attach the disk again, then: " + d.Host.Command("zpool", "clear", d.state.Pool) +
		"\nwithout the disk, only a reboot removes the suspended pool"
}

// fail records why the run cannot use or release the disk.
func (d *diskRun) fail(err error) {
	d.err = replicate.InKeys(err)
	d.state.Reason, d.state.Hint = d.err.Error(), fault.HintOf(d.err)
}

// attachDisks imports the pools that the job may import. A target has at most one imported disk. Of
// several attached ones, the run imports that with the oldest copies.
func (w *jobRun) attachDisks(ctx context.Context) {
	w.findDisks(ctx)
	var attached []*diskRun
	for _, t := range w.session.Targets {
		if d := w.disk(t); d != nil && d.state.State == decide.DiskAttached && t.Target.Disk.Import && d.err == nil && w.heldBatch(t) == nil {
			attached = append(attached, d)
		}
	}
	slices.SortStableFunc(attached, func(a, b *diskRun) int { return a.state.Seen.Compare(b.state.Seen) })
	for _, d := range attached {
		if o := w.imported(d.state.Pool); o != nil && o.state.GUID != d.state.GUID {
			_ = d.state.Next(decide.SeenSibling, w.run.Started)
		} else if err := d.attach(ctx); err != nil {
			d.fail(err)
		}
	}
	for _, t := range w.session.Targets {
		d := w.disk(t)
		if d == nil || !d.state.State.Usable() || d.err != nil {
			continue
		}
		if err := d.lock(ctx); err != nil {
			d.fail(err)
		} else if d.state.State.Usable() {
			d.use(ctx)
		}
	}
	if err := w.session.Store.Save(w.session.State); err != nil && len(w.disks) > 0 {
		w.note("cannot record the state of disks: %v", err)
	}
}

// imported returns the disk that the run uses under a pool's name, or nil.
func (w *jobRun) imported(pool string) *diskRun {
	for _, o := range w.disks {
		if o.state.Pool == pool && o.state.State.Usable() {
			return o
		}
	}
	return nil
}

// lock keeps other jobs from using, and above all from exporting, the disk. A job with a schedule does
// not wait for another one: its next run uses the disk.
func (d *diskRun) lock(ctx context.Context) (err error) {
	if d.state.State == decide.DiskPresent { // no job exports it
		return nil
	}
	for _, o := range d.disks { // two targets on one disk
		if o.state.GUID == d.state.GUID && o.unlock != nil {
			return nil
		}
	}
	defer d.session.Activity("waiting for another job that uses %s", d.state)()
	d.unlock, err = statedir.LockDisk(ctx, d.Env.StateDir, d.state.GUID, d.session.Job.Schedule == "")
	if errors.Is(err, statedir.ErrRunning) {
		_ = d.state.Next(decide.SeenSibling, d.run.Started)
		d.state.Reason = "another job uses the disk"
		return nil
	}
	return err
}

// attach imports the pool, unless another job uses or has just used it.
func (d *diskRun) attach(ctx context.Context) error {
	if err := d.lock(ctx); err != nil || d.state.State != decide.DiskAttached {
		return err
	}
	if d.observe(ctx); d.err != nil || d.state.State != decide.DiskAttached { // the lock may have taken long
		return d.err
	}
	return d.importPool(ctx)
}

// importPool imports the pool of the disk, and checks that it is the right one.
func (d *diskRun) importPool(ctx context.Context) error {
	if _, err := decide.NextDisk(d.state.State, decide.DiskImport); err != nil {
		return err
	}
	if err := d.inspect(ctx); err != nil {
		return err
	}
	if err := d.importAs(ctx, false); err != nil {
		return err
	}
	found, err := d.find(ctx)
	if err != nil {
		return err
	}
	if d.see(&found); d.state.State != decide.DiskImported && d.state.State != decide.DiskScrubbing && d.err == nil {
		return fault.Failf("", "%s was imported, but is %s", d.state, d.state.State)
	}
	d.Env.Log(fmt.Sprintf("%s: imported %s for %s", d.session.Job.Name, d.state, d.Name))
	return d.err
}

func (d *diskRun) importAs(ctx context.Context, readOnly bool) error {
	defer d.session.Activity("importing %s", d.state)()
	i := zfs.PoolImport{GUID: d.state.GUID, Directories: d.Target.Disk.DirectoriesOrDefault(), ReadOnly: readOnly}
	if err := hosts.Run(ctx, d.Host, hosts.OpImportPool, i); err != nil {
		return fmt.Errorf("cannot import %s: %w", d.state, err)
	}
	return nil
}

// inspect imports the pool read-only, checks it, and exports it. Nothing is written to a disk that the run refuses.
func (d *diskRun) inspect(ctx context.Context) error {
	left := slices.ContainsFunc(d.found.Imported, func(p zfs.ImportedPool) bool { return p.GUID == d.state.GUID }) // by a killed run
	if !left {
		if err := d.assemble(ctx); err != nil {
			return err
		}
		if err := d.importAs(ctx, true); err != nil {
			return err
		}
	}
	err := d.check(ctx)
	if failed := d.exportPool(context.WithoutCancel(ctx)); failed != nil && err == nil {
		return d.lost(ctx, failed, failed)
	}
	return err
}

// assemble waits until the pool has all its devices. zxfer does not import a degraded pool: a device
// that appears later would need a resilver.
func (d *diskRun) assemble(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, assembleTimeout)
	defer cancel()
	for {
		found, err := d.find(ctx) // not waiting: its end must not interrupt a search
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found.Attached, func(p zfs.AttachedPool) bool { return p.GUID == d.state.GUID })
		state := "gone"
		if i >= 0 {
			state = found.Attached[i].State
		}
		if state == zfs.PoolOnline {
			return nil
		}
		if !retry.Sleep(waiting, watchInterval) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fault.Refusef("attach all devices of the pool, or import it by hand: "+
				d.Host.Command("zpool", "import", "-N", "-o", "cachefile=none", strconv.FormatUint(d.state.GUID, 10)),
				"%s is %s: zxfer imports only a complete pool", d.state, state)
		}
	}
}

// use checks the pool, and records that the run uses it.
func (d *diskRun) use(ctx context.Context) {
	if err := d.check(ctx); err != nil {
		d.fail(err)
		return
	}
	d.state.Seen = d.run.Started
}

// check checks that the pool holds the copy that earlier runs made. A GUID identifies a pool, but
// anyone can write it to a disk.
func (d *diskRun) check(ctx context.Context) error {
	root := d.Target.CopyOf(d.jobRun.session.Source.At.Name, d.jobRun.session.Source.At.Name)
	found, err := d.Properties(ctx, []string{root}, "guid")
	if err != nil {
		return d.lost(ctx, err, err)
	}
	guid, _ := strconv.ParseUint(found[root]["guid"].Value, 10, 64) // 0 = no such dataset
	if d.state.Root != 0 && guid != d.state.Root && !d.replaced() {
		return fault.Refusef("if you emptied the disk, give it another label in disk.pools; the next run sends everything",
			"%s does not have the copy %s that earlier runs made: it may be another disk with the same GUID", d.state, root)
	}
	return d.checkOthers(ctx, root)
}

// maxNamed limits the filesystems in the command of checkOthers.
const maxNamed = 20

// checkOthers refuses a pool with filesystems outside of the copy that ZFS would mount and that are not mounted. Their
// files come with the disk, and a link among them leads a mount anywhere. The pool's root filesystem may have the
// mountpoint that zpool create gives it: the job file names the pool.
func (d *diskRun) checkOthers(ctx context.Context, root string) error {
	all, err := hosts.Call(ctx, d.Host, hosts.OpMountpoints, hosts.None{})
	if err != nil {
		return err
	}
	var names []string
	pool := d.state.Pool
	usual := func(at string) bool { // also below the alternate root of zxfer
		return at == "/"+pool || strings.HasSuffix(at, zfs.PoolRoot("/", d.state.GUID)+"/"+pool)
	}
	for _, m := range all {
		copied := m.Dataset == root || strings.HasPrefix(m.Dataset, root+"/")
		if zfs.PoolOf(m.Dataset) == pool && !copied && !(m.Dataset == pool && usual(m.At)) {
			names = append(names, m.Dataset)
		}
	}
	if len(names) == 0 {
		return nil
	}
	hint := d.Host.Command(append([]string{"zfs", "set", "canmount=noauto"}, names[:min(len(names), maxNamed)]...)...)
	if d.state.State != decide.DiskPresent {
		words := []string{"zpool", "import", "-N"}
		for _, dir := range d.Target.Disk.Directories {
			words = append(words, "-d", dir)
		}
		hint = d.Host.Command(append(words, strconv.FormatUint(d.state.GUID, 10))...) + "\n" + hint + "\n" + d.Host.Command("zpool", "export", pool)
	}
	return fault.Refusef(hint, "%s: ZFS would mount filesystems of the disk that are not in the copy %s: %s", d.state, root, finding.JoinFirst(names, 3))
}

// replaced reports whether a run renamed the copy that Root identifies, to replace it, and was killed before it
// recorded the new one.
func (d *diskRun) replaced() bool {
	return slices.ContainsFunc(d.jobRun.session.State.Diverged, func(a replicate.DivergedCopy) bool { return a.Target == d.Name && a.GUID == d.state.Root })
}

// detachDisks exports the pools that a run imported, and remembers the copies. It continues after an
// interruption, so that the disk may be removed.
func (w *jobRun) detachDisks(ctx context.Context) {
	for i, t := range w.session.Targets {
		d := w.disk(t)
		if d == nil {
			continue
		}
		if d.unlock != nil {
			defer d.unlock()
		}
		w.run.Targets[i].Disk, w.run.Targets[i].DiskSince = string(d.state.State), d.state.Since
		if !d.state.State.Usable() {
			continue
		}
		if d.err == nil {
			d.rememberRoot(context.WithoutCancel(ctx))
		}
		if !t.Target.Disk.Export || d.state.State == decide.DiskPresent {
			continue
		}
		if err := d.export(context.WithoutCancel(ctx)); err != nil {
			w.failTarget(i, d.lost(ctx, err, err))
		}
		w.run.Targets[i].Disk, w.run.Targets[i].DiskSince = string(d.state.State), d.state.Since
	}
}

// rememberRoot records the GUID of the copy.
func (d *diskRun) rememberRoot(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	root := d.Target.CopyOf(d.jobRun.session.Source.At.Name, d.jobRun.session.Source.At.Name)
	if found, err := d.Properties(ctx, []string{root}, "guid"); err == nil && found[root] != nil {
		d.state.Root, _ = strconv.ParseUint(found[root]["guid"].Value, 10, 64) // 0 = unknown
	}
}

func (d *diskRun) export(ctx context.Context) error {
	if _, err := decide.NextDisk(d.state.State, decide.DiskExport); err != nil {
		return err
	}
	if err := d.exportPool(ctx); err != nil {
		return err
	}
	d.Env.Log(fmt.Sprintf("%s: disk %s (%s) may be removed", d.session.Job.Name, d.Name, d.state))
	return d.state.Next(decide.DiskExport, d.run.Started)
}

func (d *diskRun) exportPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	defer d.session.Activity("exporting pool %s", d.state.Pool)()
	l := retry.Loop{
		Try: func(ctx context.Context, _ int) error {
			return hosts.Run(ctx, d.Host, hosts.OpExportPool, zfs.PoolExport{GUID: d.state.GUID})
		},
		Retryable: func(err, _ error) bool { return errors.Is(err, &zfs.Error{Kind: zfs.Busy}) },
		Pause:     func(_ error, n int) (time.Duration, bool) { return retry.Backoff(n), n <= exportRetries },
	}
	if err := l.Run(ctx); err != nil {
		return fault.Failf(fault.HintOf(err), "the disk must not be removed: cannot export it: %w", err)
	}
	return nil
}

// failTarget adds the error of a disk to the record of a target.
func (w *jobRun) failTarget(i int, err error) {
	d := w.disk(w.session.Targets[i])
	d.fail(err)
	w.run.Targets[i].FailDisk(d.err)
	w.Env.Log(w.session.Job.Name + ": " + w.session.Targets[i].Name + ": " + err.Error())
}
