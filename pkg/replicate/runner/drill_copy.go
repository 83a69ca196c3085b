package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// drillTimeout is the default timeout of a drill command.
const drillTimeout = time.Hour

// drillCopy is the drill of one copy.
type drillCopy struct {
	*drillRun
	t              *side
	as             replicate.Drill
	source, target *zfs.Dataset // nil if missing
	sourceSnapshot string       // full name of the source's snapshot; "" = no comparison
	clone          string
	bad            bool // the copy is known to be bad
	rec            *statedir.DrilledRun
}

// drill verifies the copy and records the result.
func (c *drillCopy) drill(ctx context.Context) {
	began := time.Now()
	err := c.verify(ctx)
	c.rec.Seconds = time.Since(began).Seconds()
	c.rec.Outcome = outcome.Done
	if err == nil {
		return
	}
	c.rec.Outcome, c.rec.Error, c.rec.Hint = statedir.Unproved, err.Error(), fault.HintOf(err)
	switch {
	case c.bad:
		c.rec.Outcome = outcome.Failed
	case ctx.Err() != nil, outcome.Of(err) == outcome.Interrupted:
		c.rec.Outcome = outcome.Interrupted
	}
	c.Log(fmt.Sprintf("%s: %s: %s is %s: %s", c.job.Name, c.t.name, c.rec.Target, c.rec.Standing(), c.rec.Error))
}

func (c *drillCopy) verify(ctx context.Context) (err error) {
	if err := c.listBoth(ctx); err != nil {
		return err
	}
	snapshot := c.rec.Target + "@" + c.rec.Snapshot
	defer c.activity("drilling %s of %s", snapshot, c.t.name)()
	c.clone, err = hosts.Call(ctx, c.t.do, hosts.DrillHost.CreateDrillClone,
		zfs.DrillClone{Snapshot: snapshot, Job: c.job.Name, Writable: c.as.Writable, KeyFile: c.as.KeyFile})
	defer func() {
		if destroyed := c.t.removeClones(ctx, zfs.DrillClones{Job: c.job.Name, Datasets: []string{c.rec.Target}}); destroyed != nil {
			c.note("%s: the clone of %s could not be removed, which the next drill tries again: %v", c.t.name, snapshot, destroyed)
		}
	}()
	if err != nil {
		c.bad = strings.Contains(err.Error(), "Incorrect key") // ZFS's message: the key in the job file does not open the copy
		return err
	}
	locked := c.target.Encrypted() && !c.target.KeyLoaded() && c.as.KeyFile == ""
	if c.target.Type == zfs.Filesystem && !locked {
		if err = c.files(ctx); err == nil {
			return c.runCommand(ctx)
		}
		locked = errors.Is(err, &zfs.Error{Kind: zfs.KeyMissing}) // unloaded meanwhile
		if !locked && !errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) {
			return err
		}
	}
	if err := c.stream(ctx); err != nil {
		return err
	}
	if locked {
		return c.errLocked()
	}
	return c.runCommand(ctx)
}

// listBoth lists both sides, since runs may have changed them, and picks the most recent common
// snapshot, or the copy's most recent one.
func (c *drillCopy) listBoth(ctx context.Context) error {
	target, err := c.t.list(ctx, hosts.ListQuery{Dataset: c.rec.Target, Versions: true, Alone: true})
	if err != nil && !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	target.Skip(zfs.HealPrefix) // heal snapshots can be neither mounted nor cloned
	if c.target = target.Find(c.rec.Target); c.target == nil || len(c.target.Snapshots()) == 0 {
		return c.badCopy(c.command("run "+c.job.Name), "there is no copy, or no snapshot of it")
	}
	if !c.sourceDown {
		source, err := c.jobRun.source.list(ctx, hosts.ListQuery{Dataset: c.rec.Source, Versions: true, Alone: true})
		if err != nil {
			c.note("%s is compared with nothing: %v", c.rec.Target, err)
		}
		c.source = source.Find(c.rec.Source)
	}
	c.chooseSnapshot()
	return nil
}

// badCopy returns an error that proves the copy bad. Other errors leave its condition unknown.
func (c *drillCopy) badCopy(hint, format string, args ...any) error {
	c.bad = true
	return fault.Failf(hint, format, args...)
}

func (c *drillCopy) chooseSnapshot() {
	all := c.target.Snapshots()
	c.rec.Snapshot = all[len(all)-1].Name
	c.rec.Note = "the source has none of its snapshots"
	if c.source == nil {
		c.rec.Note = "the source was not there to compare with"
		return
	}
	for i := len(all) - 1; i >= 0; i-- {
		if v, ok := c.source.SnapshotOf(all[i].GUID); ok {
			c.rec.Snapshot, c.sourceSnapshot, c.rec.Note = all[i].Name, v.In(c.source.Name), ""
			return
		}
	}
}

// stream reads the copy as a send stream. If both sides are encrypted, a raw stream needs no key.
func (c *drillCopy) stream(ctx context.Context) error {
	raw := c.target.Encrypted() && (c.source == nil || c.source.Encrypted()) && !c.t.transfer.Decrypt
	size, keyFile := "logicalreferenced", c.as.KeyFile
	if raw {
		size, keyFile = "referenced", ""
	}
	var target, source hosts.Digest
	err := c.withProgress(ctx, size, 1, func(progress func(transfer.Progress)) (_ uint64, err error) {
		target, source, err = readBoth(ctx, c, c.rec.Target+"@"+c.rec.Snapshot, keyFile, progress,
			func(ctx context.Context, s *side, snapshot, keyFile string, progress func(transfer.Progress)) (d hosts.Digest, err error) {
				dataset, name, _ := strings.Cut(snapshot, "@")
				q := hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: dataset, To: name, Flags: zfs.StreamFlags{Raw: raw, LargeBlocks: !raw}}, Seed: c.Seed, KeyFile: keyFile}
				err = s.do(ctx, hosts.WithRole(func(st hosts.Digester) (err error) { d, err = st.Digest(ctx, q, progress); return err }))
				return d, err
			})
		return target.Bytes, err
	})
	if err != nil {
		return err
	}
	c.rec.Read, c.rec.Bytes = "stream", target.Bytes
	if c.rec.Compared && target.Sum != source.Sum {
		where := ""
		if from, to, err := zfs.FirstDifference(source, target); err == nil {
			where = fmt.Sprintf(": the first that differs is one of the objects %d to %d", from, to-1)
		}
		return c.badCopy("zpool scrub on both pools, and drill again", "its contents are not those of %s%s", c.sourceSnapshot, where)
	}
	return nil
}

// withProgress reports the progress of read. The expected size is share times the snapshot's property
// size.
func (c *drillCopy) withProgress(ctx context.Context, size string, share float64, read func(progress func(transfer.Progress)) (uint64, error)) error {
	name := c.rec.Target + "@" + c.rec.Snapshot
	found, _ := c.t.properties(ctx, []string{name}, size) // on error the total is unknown
	all, _ := strconv.ParseUint(found[name][size].Value, 10, 64)
	total := uint64(float64(all) * share)
	rep, began := c.reporter(c.job.Name, c.t.name), time.Now()
	rep.Started(1, &plan.Dataset{Source: c.rec.Target, Steps: []plan.Step{{Send: zfs.SendSpec{To: c.rec.Snapshot}, Bytes: total}}}, 0)
	_, tell := connect.Watch(total, func(p connect.Progress) { rep.Progress(1, p) })
	bytes, err := read(tell)
	r := &job.StepResult{Bytes: bytes, Seconds: time.Since(began).Seconds()}
	if err != nil {
		r.Error = err.Error()
	}
	rep.Finished(1, r)
	return err
}

// readBoth reads the copy and, for comparison, the source's snapshot at the same time. Errors of the
// source are only noted, because they say nothing about the copy.
func readBoth[D any](ctx context.Context, c *drillCopy, name, keyFile string, progress func(transfer.Progress),
	read func(ctx context.Context, s *side, name, keyFile string, progress func(transfer.Progress)) (D, error)) (target, source D, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		target, err = read(gctx, c.t, name, keyFile, progress)
		return c.checkReadError(ctx, err)
	})
	if c.sourceSnapshot != "" {
		c.rec.Compared, c.rec.Note = false, ""
		g.Go(func() (err error) {
			if source, err = read(gctx, c.jobRun.source, c.sourceSnapshot, "", nil); err != nil {
				c.rec.Note = "not compared: " + err.Error()
			}
			c.rec.Compared = err == nil
			return nil
		})
	}
	err = g.Wait()
	return target, source, err
}

// checkReadError marks the copy as bad if err is a read error of the copy itself. Errors of its key, the
// host or zxfer prove nothing.
func (c *drillCopy) checkReadError(ctx context.Context, err error) error {
	var of *zfs.Error
	errors.As(err, &of)
	switch {
	case err == nil, ctx.Err() != nil, outcome.Of(err) != outcome.Failed, errors.Is(err, hosts.ErrLost):
	case of == nil: // an error of zxfer
	case of.Op == zfs.OpLoadKey, of.Op == zfs.OpUnload, of.Op == zfs.OpList, slices.Contains(unrelatedKinds(), of.Kind):
	default:
		c.bad = true
	}
	return err
}

// unrelatedKinds returns the kinds of errors that prove nothing about the data.
func unrelatedKinds() []zfs.Kind {
	return []zfs.Kind{zfs.KeyMissing, zfs.Permission, zfs.NotSupported, zfs.NoSpace, zfs.NoZFS, zfs.NotFound, zfs.Busy, zfs.Killed, zfs.Feature}
}

// errLocked returns the error for an encrypted copy whose blocks are readable but whose key is not
// loaded.
func (c *drillCopy) errLocked() error {
	return &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpLoadKey, Subject: cmp.Or(c.target.Get("encryptionroot"), c.rec.Target),
		Detail: "its key is not loaded: its blocks can be read, and whether the key opens them is not known",
		Hint:   "drill.key_file names a file with it on " + c.t.host.Label()}
}

// runCommand runs the job file's command in the clone of a filesystem.
func (c *drillCopy) runCommand(ctx context.Context) error {
	as := &c.as
	if len(as.Command) == 0 || c.target.Type == zfs.Volume {
		return nil
	}
	defer c.activity("running %s in the clone of %s", as.Command[0], c.rec.Target)()
	// No retry after a lost connection: the command may still be running.
	out, err := hosts.Call(ctx, c.t.host.Do, hosts.DrillHost.RunInDrillClone, zfs.DrillCommand{Clone: c.clone, Argv: as.Command,
		Timeout: cmp.Or(time.Duration(as.Timeout), drillTimeout), Writable: as.Writable, KeyFile: as.KeyFile, Environment: []string{
			"ZXFER_DRILL_JOB=" + c.job.Name, "ZXFER_DRILL_SOURCE=" + c.rec.Source, "ZXFER_DRILL_COPY=" + c.rec.Target, "ZXFER_DRILL_SNAPSHOT=" + c.rec.Snapshot}})
	if err = replicate.InKeys(err); errors.Is(err, hosts.ErrLost) {
		return fault.Interrupt("", err)
	}
	if err != nil {
		return err
	}
	c.rec.Command, c.rec.Output = "passed", out.Output
	if out.Failure != "" {
		c.rec.Command = "failed"
		return c.badCopy("what it said is in the record: zxfer replicate log --drills --json "+c.job.Name+c.Flags, "%s: %s", as.Command[0], out.Failure)
	}
	return nil
}
