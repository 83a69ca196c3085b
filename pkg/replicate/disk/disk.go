// Package disk attaches, watches, scrubs and detaches the disks of targets: pools that come and go.
package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/session"
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

// Set holds the disks of a job's targets during one command. A nil Set has no disks.
type Set struct {
	session *session.Session
	started time.Time
	state   sync.Locker // guards session.State while several targets are served
	disks   map[string]*Disk
}

// Disk is the disk of a target during a command.
type Disk struct {
	State *replicate.DiskState
	Err   error // why the command cannot use the disk, nil if it can or if the disk is away

	set    *Set
	side   *session.Side
	unlock func() // lets other jobs use the disk; nil = not locked
	// found is the result of the last search. unknown reports that it failed.
	found   zfs.FoundPools
	unknown bool
}

// Find observes the disks of all targets, for a command that started at a time. It changes only the state
// of the job. state guards that.
func Find(ctx context.Context, s *session.Session, started time.Time, state sync.Locker) *Set {
	all := &Set{session: s, started: started, state: state, disks: map[string]*Disk{}}
	searched := map[string]*Disk{} // by directories: a search reads all devices
	for _, t := range s.Targets {
		if t.Target.Disk == nil {
			continue
		}
		d := &Disk{set: all, side: t, State: s.State.Disk(t.Target, started)}
		all.disks[t.Name], t.Watch = d, d.watch
		key := strings.Join(t.Target.Disk.DirectoriesOrDefault(), "\x00")
		if before := searched[key]; before != nil {
			d.see(&before.found)
			continue
		}
		if d.observe(ctx); !d.unknown {
			searched[key] = d
		}
	}
	return all
}

// Of returns the disk of a target, or nil.
func (s *Set) Of(t *session.Side) *Disk {
	if s == nil {
		return nil
	}
	return s.disks[t.Name]
}

// Usable reports whether the pool is imported, so that a command may use it unless Err is set.
func (d *Disk) Usable() bool { return d.State.State.Usable() }

// Skipped returns why a command does not use the disk.
func (d *Disk) Skipped() string {
	if d.Err != nil {
		return fmt.Sprintf("%s is skipped: %v", d.side.Name, d.Err)
	}
	return fmt.Sprintf("%s is skipped: the disk (%s) is %s", d.side.Name, d.State, d.State.State)
}

// observe searches for the disk.
func (d *Disk) observe(ctx context.Context) {
	found, err := d.find(ctx)
	if d.unknown = err != nil; d.unknown {
		_ = d.State.Next(decide.SeenAbsent, d.set.started) // observations are never refused
		d.Fail(fmt.Errorf("cannot search for pools: %w", err))
		return
	}
	d.see(&found)
}

func (d *Disk) find(ctx context.Context) (zfs.FoundPools, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	defer d.set.session.Activity("searching for %s", d.State)()
	q := zfs.PoolQuery{Directories: d.side.Target.Disk.DirectoriesOrDefault()}
	if d.set.session.Job.User != "" && !d.side.Target.Disk.Import { // zpool import requires root
		q.Directories = nil
	}
	return hosts.Call(ctx, d.side.Host, hosts.OpFindPools, q)
}

// see applies what the host's pools mean for the disk.
func (d *Disk) see(found *zfs.FoundPools) {
	d.found = *found
	id := d.side.Target.Identity()
	event, why := id.Observe(found)
	_ = d.State.Next(event, d.set.started) // observations are never refused
	d.Err, d.State.Reason, d.State.Hint = nil, "", ""
	switch event {
	case decide.SeenForeign:
		d.Fail(fault.Refusef("if the disk belongs to this target, add the GUID to disk.pools\notherwise, detach the disk or rename its pool", "%s", why))
	case decide.SeenSuspended:
		d.Fail(fault.Failf(d.clearHint(), "pool %s: %w", d.State.Pool, errSuspended))
	}
}

// clearHint returns the steps that recover a suspended pool.
func (d *Disk) clearHint() string {
	return "attach the disk again, then: " + d.side.Host.Command("zpool", "clear", d.State.Pool) +
		"\nwithout the disk, only a reboot removes the suspended pool"
}

// Fail records why the run cannot use or release the disk.
func (d *Disk) Fail(err error) {
	d.Err = replicate.InKeys(err)
	d.State.Reason, d.State.Hint = d.Err.Error(), fault.HintOf(d.Err)
}

// Attach imports the pools that the job may import, for the targets that permits allows. A target has at
// most one imported disk. If several are attached, Attach imports the one with the oldest copies. Its error
// concerns the record of the disks; each disk has its own.
func (s *Set) Attach(ctx context.Context, permits func(*session.Side) bool) error {
	var attached []*Disk
	for _, t := range s.session.Targets {
		if d := s.Of(t); d != nil && d.State.State == decide.DiskAttached && t.Target.Disk.Import && d.Err == nil && permits(t) {
			attached = append(attached, d)
		}
	}
	slices.SortStableFunc(attached, func(a, b *Disk) int { return a.State.Seen.Compare(b.State.Seen) })
	for _, d := range attached {
		if o := s.imported(d.State.Pool); o != nil && o.State.GUID != d.State.GUID {
			_ = d.State.Next(decide.SeenSibling, s.started)
		} else if err := d.attach(ctx); err != nil {
			d.Fail(err)
		}
	}
	for _, t := range s.session.Targets {
		d := s.Of(t)
		if d == nil || !d.Usable() || d.Err != nil {
			continue
		}
		if err := d.lock(ctx); err != nil {
			d.Fail(err)
		} else if d.Usable() {
			d.use(ctx)
		}
	}
	if len(s.disks) == 0 {
		return nil
	}
	return s.session.Store.Save(s.session.State)
}

// imported returns the disk that the command uses under a pool's name, or nil.
func (s *Set) imported(pool string) *Disk {
	for _, o := range s.disks {
		if o.State.Pool == pool && o.Usable() {
			return o
		}
	}
	return nil
}

// lock keeps other jobs from using, and above all from exporting, the disk. A job with a schedule does
// not wait for another one: its next run uses the disk.
func (d *Disk) lock(ctx context.Context) (err error) {
	if d.State.State == decide.DiskPresent { // no job exports it
		return nil
	}
	for _, o := range d.set.disks { // two targets on one disk
		if o.State.GUID == d.State.GUID && o.unlock != nil {
			return nil
		}
	}
	defer d.set.session.Activity("waiting for another job that uses %s", d.State)()
	d.unlock, err = statedir.LockDisk(ctx, d.set.session.Env.StateDir, d.State.GUID, d.set.session.Job.Schedule == "")
	if errors.Is(err, statedir.ErrRunning) {
		_ = d.State.Next(decide.SeenSibling, d.set.started)
		d.State.Reason = "another job uses the disk"
		return nil
	}
	return err
}

// attach imports the pool, unless another job uses or has just used it.
func (d *Disk) attach(ctx context.Context) error {
	if err := d.lock(ctx); err != nil || d.State.State != decide.DiskAttached {
		return err
	}
	if d.observe(ctx); d.Err != nil || d.State.State != decide.DiskAttached { // the lock may have taken long
		return d.Err
	}
	return d.importPool(ctx)
}

// importPool imports the pool of the disk, and checks that it is the right one.
func (d *Disk) importPool(ctx context.Context) error {
	if _, err := decide.NextDisk(d.State.State, decide.DiskImport); err != nil {
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
	if d.see(&found); d.State.State != decide.DiskImported && d.State.State != decide.DiskScrubbing && d.Err == nil {
		return fault.Failf("", "%s was imported, but is %s", d.State, d.State.State)
	}
	d.set.session.Env.Log(fmt.Sprintf("%s: imported %s for %s", d.set.session.Job.Name, d.State, d.side.Name))
	return d.Err
}

func (d *Disk) importAs(ctx context.Context, readOnly bool) error {
	defer d.set.session.Activity("importing %s", d.State)()
	i := zfs.PoolImport{GUID: d.State.GUID, Directories: d.side.Target.Disk.DirectoriesOrDefault(), ReadOnly: readOnly}
	if err := hosts.Run(ctx, d.side.Host, hosts.OpImportPool, i); err != nil {
		return fmt.Errorf("cannot import %s: %w", d.State, err)
	}
	return nil
}

// inspect imports the pool read-only, checks it, and exports it. Nothing is written to a disk that the run refuses.
func (d *Disk) inspect(ctx context.Context) error {
	left := slices.ContainsFunc(d.found.Imported, func(p zfs.ImportedPool) bool { return p.GUID == d.State.GUID }) // by a killed run
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
		return d.Lost(ctx, failed, failed)
	}
	return err
}

// assemble waits until the pool has all its devices. zxfer does not import a degraded pool: a device
// that appears later would need a resilver.
func (d *Disk) assemble(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, assembleTimeout)
	defer cancel()
	for {
		found, err := d.find(ctx) // not waiting: its end must not interrupt a search
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found.Attached, func(p zfs.AttachedPool) bool { return p.GUID == d.State.GUID })
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
				d.side.Host.Command("zpool", "import", "-N", "-o", "cachefile=none", strconv.FormatUint(d.State.GUID, 10)),
				"%s is %s: zxfer imports only a complete pool", d.State, state)
		}
	}
}

// use checks the pool, and records that the run uses it.
func (d *Disk) use(ctx context.Context) {
	if err := d.check(ctx); err != nil {
		d.Fail(err)
		return
	}
	d.State.Seen = d.set.started
}

// check checks that the pool holds the copy that earlier runs made. A GUID identifies a pool, but
// anyone can write it to a disk.
func (d *Disk) check(ctx context.Context) error {
	root := d.side.Target.CopyOf(d.set.session.Source.At.Name, d.set.session.Source.At.Name)
	found, err := d.side.Properties(ctx, []string{root}, "guid")
	if err != nil {
		return d.Lost(ctx, err, err)
	}
	guid, _ := strconv.ParseUint(found[root]["guid"].Value, 10, 64) // 0 = no such dataset
	if d.State.Root != 0 && guid != d.State.Root && !d.replaced() {
		return fault.Refusef("if you emptied the disk, give it another label in disk.pools; the next run sends everything",
			"%s does not have the copy %s that earlier runs made: it may be another disk with the same GUID", d.State, root)
	}
	return d.checkOthers(ctx, root)
}

// maxNamed limits the filesystems in the command of checkOthers.
const maxNamed = 20

// checkOthers refuses a pool with filesystems outside of the copy that ZFS would mount and that are not mounted. Their
// files come with the disk, and a link among them leads a mount anywhere. The pool's root filesystem may have the
// mountpoint that zpool create gives it: the job file names the pool.
func (d *Disk) checkOthers(ctx context.Context, root string) error {
	all, err := hosts.Call(ctx, d.side.Host, hosts.OpMountpoints, hosts.None{})
	if err != nil {
		return err
	}
	var names []string
	pool := d.State.Pool
	usual := func(at string) bool { // also below the alternate root of zxfer
		return at == "/"+pool || strings.HasSuffix(at, zfs.PoolRoot("/", d.State.GUID)+"/"+pool)
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
	hint := d.side.Host.Command(append([]string{"zfs", "set", "canmount=noauto"}, names[:min(len(names), maxNamed)]...)...)
	if d.State.State != decide.DiskPresent {
		words := []string{"zpool", "import", "-N"}
		for _, dir := range d.side.Target.Disk.Directories {
			words = append(words, "-d", dir)
		}
		hint = d.side.Host.Command(append(words, strconv.FormatUint(d.State.GUID, 10))...) + "\n" + hint + "\n" + d.side.Host.Command("zpool", "export", pool)
	}
	return fault.Refusef(hint, "%s: ZFS would mount filesystems of the disk that are not in the copy %s: %s", d.State, root, finding.JoinFirst(names, 3))
}

// replaced reports whether a run renamed the copy that Root identifies, to replace it, and was killed before it
// recorded the new one.
func (d *Disk) replaced() bool {
	return slices.ContainsFunc(d.set.session.State.Diverged, func(a replicate.DivergedCopy) bool { return a.Target == d.side.Name && a.GUID == d.State.Root })
}

// Detach remembers the copy, and exports the pool if the job does that. It continues after an interruption,
// so that the disk may be removed.
func (d *Disk) Detach(ctx context.Context) error {
	if !d.Usable() {
		return nil
	}
	if d.Err == nil {
		d.rememberRoot(context.WithoutCancel(ctx))
	}
	if !d.side.Target.Disk.Export || d.State.State == decide.DiskPresent {
		return nil
	}
	if err := d.export(context.WithoutCancel(ctx)); err != nil {
		return d.Lost(ctx, err, err)
	}
	return nil
}

// Unlock lets other jobs use the disks.
func (s *Set) Unlock() {
	for _, d := range s.disks {
		if d.unlock != nil {
			d.unlock()
			d.unlock = nil
		}
	}
}

// rememberRoot records the GUID of the copy.
func (d *Disk) rememberRoot(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	root := d.side.Target.CopyOf(d.set.session.Source.At.Name, d.set.session.Source.At.Name)
	if found, err := d.side.Properties(ctx, []string{root}, "guid"); err == nil && found[root] != nil {
		d.State.Root, _ = strconv.ParseUint(found[root]["guid"].Value, 10, 64) // 0 = unknown
	}
}

func (d *Disk) export(ctx context.Context) error {
	if _, err := decide.NextDisk(d.State.State, decide.DiskExport); err != nil {
		return err
	}
	if err := d.exportPool(ctx); err != nil {
		return err
	}
	d.set.session.Env.Log(fmt.Sprintf("%s: disk %s (%s) may be removed", d.set.session.Job.Name, d.side.Name, d.State))
	return d.State.Next(decide.DiskExport, d.set.started)
}

func (d *Disk) exportPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, exportTimeout)
	defer cancel()
	defer d.set.session.Activity("exporting pool %s", d.State.Pool)()
	l := retry.Loop{
		Try: func(ctx context.Context, _ int) error {
			return hosts.Run(ctx, d.side.Host, hosts.OpExportPool, zfs.PoolExport{GUID: d.State.GUID})
		},
		Retryable: func(err, _ error) bool { return errors.Is(err, &zfs.Error{Kind: zfs.Busy}) },
		Pause:     func(_ error, n int) (time.Duration, bool) { return retry.Backoff(n), n <= exportRetries },
	}
	if err := l.Run(ctx); err != nil {
		return fault.Failf(fault.HintOf(err), "the disk must not be removed: cannot export it: %w", err)
	}
	return nil
}
