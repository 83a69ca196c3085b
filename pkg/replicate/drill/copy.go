package drill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// drillTimeout is the default timeout of a drill command.
const drillTimeout = time.Hour

// oneCopy is the drill of one copy.
type oneCopy struct {
	of             *drill
	t              *session.Side
	as             replicate.Drill
	source, target *zfs.Dataset // nil if missing
	sourceSnapshot string       // full name of the source's snapshot; "" = no comparison
	clone          string
	bad            bool  // the copy is known to be bad
	sourceErr      error // of the last read of the source
	rec            *statedir.DrillResult
}

// drill verifies the copy and records the result.
func (c *oneCopy) drill(ctx context.Context) {
	began := time.Now()
	err := c.verify(ctx)
	c.rec.Seconds = time.Since(began).Seconds()
	c.rec.Outcome = outcome.Done
	if err == nil {
		return
	}
	c.rec.Outcome = statedir.Unverified
	switch {
	case c.bad:
		c.rec.Outcome = outcome.Failed
	case errors.Is(context.Cause(ctx), statedir.ErrDeadline):
		c.rec.Outcome, err = statedir.NotFinished, context.Cause(ctx)
	case ctx.Err() != nil, outcome.Of(err) == outcome.Interrupted:
		c.rec.Outcome = outcome.Interrupted
	}
	c.rec.Error, c.rec.Hint = err.Error(), fault.HintOf(err)
	c.of.session.Env.Log(fmt.Sprintf("%s: %s: %s is %s: %s", c.of.session.Job.Name, c.t.Name, c.rec.Target, c.rec.DisplayOutcome(), c.rec.Error))
}

func (c *oneCopy) verify(ctx context.Context) (err error) {
	if err := c.listBoth(ctx); err != nil {
		return err
	}
	snapshot := c.rec.Target + "@" + c.rec.Snapshot
	defer c.of.session.Activity("drilling %s of %s", snapshot, c.t.Name)()
	c.clone, err = hosts.Call(ctx, c.t, hosts.OpCreateDrillClone,
		zfs.DrillClone{Snapshot: snapshot, Job: c.of.session.Job.Name, Writable: c.as.Writable, KeyFile: c.as.KeyFile})
	defer func() {
		if destroyed := c.t.RemoveClones(ctx, zfs.DrillClones{Job: c.of.session.Job.Name, Datasets: []string{c.rec.Target}}); destroyed != nil {
			c.of.note("%s: cannot destroy the clone of %s, the next drill retries: %v", c.t.Name, snapshot, destroyed)
		}
	}()
	if err != nil {
		c.bad = strings.Contains(err.Error(), "Incorrect key") // ZFS's message: the key in the job file does not open the copy
		return err
	}
	locked := c.target.Encrypted() && !c.target.KeyLoaded() && c.as.KeyFile == ""
	if c.target.Type == zfs.Filesystem && !locked && c.canReadFiles(ctx) {
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
		return c.errLocked(ctx)
	}
	return c.runCommand(ctx)
}

// canReadFiles reports whether both hosts can read files. A host without zxfer cannot.
func (c *oneCopy) canReadFiles(ctx context.Context) bool {
	return c.t.Host.Require(ctx, hosts.OpReadFiles) == nil &&
		(c.sourceSnapshot == "" || c.of.session.Source.Host.Require(ctx, hosts.OpReadFiles) == nil)
}

// listBoth lists both sides, since runs may have changed them, and picks the most recent common
// snapshot, or the copy's most recent one.
func (c *oneCopy) listBoth(ctx context.Context) error {
	target, err := c.t.List(ctx, hosts.ListQuery{Dataset: c.rec.Target, Versions: true, NoAncestors: true})
	if err != nil && !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	target.DropSnapshots(zfs.HealPrefix) // heal snapshots can be neither mounted nor cloned
	if c.target = target.Find(c.rec.Target); c.target == nil || len(c.target.Snapshots()) == 0 {
		return c.badCopy(c.of.session.Env.Command("run "+c.of.session.Job.Name), "no copy, or it has no snapshot")
	}
	if !c.of.sourceDown {
		source, err := c.of.session.Source.List(ctx, hosts.ListQuery{Dataset: c.rec.Source, Versions: true, NoAncestors: true})
		if err != nil {
			c.of.note("%s is not compared: %v", c.rec.Target, err)
		}
		c.source = source.Find(c.rec.Source)
	}
	c.chooseSnapshot()
	return nil
}

func (c *oneCopy) chooseSnapshot() {
	all := c.target.Snapshots()
	c.rec.Snapshot = all[len(all)-1].Name
	c.rec.Note = "the source lacks all its snapshots"
	if c.source == nil {
		c.rec.Note = "the source was not available"
		return
	}
	for i := len(all) - 1; i >= 0; i-- {
		if v, ok := c.source.SnapshotOf(all[i].GUID); ok {
			c.rec.Snapshot, c.sourceSnapshot, c.rec.Note = all[i].Name, v.In(c.source.Name), ""
			return
		}
	}
}

// errLocked returns the error for an encrypted copy whose blocks are readable but whose key is not
// loaded.
func (c *oneCopy) errLocked(ctx context.Context) error {
	root := cmp.Or(c.target.Get("encryptionroot"), c.rec.Target)
	hint := "set drill.key_file to a file with its key on " + c.t.Host.Label()
	if c.t.Host.Require(ctx, hosts.OpReadFiles) != nil {
		hint = c.t.Host.At().Prompt("zfs", "load-key", root)
	}
	return &zfs.Error{Kind: zfs.KeyMissing, Op: zfs.OpLoadKey, Subject: root,
		Detail: "its key is not loaded: its blocks are readable, but the key was not tested", Hint: hint}
}

// runCommand runs the job file's command in the clone of a filesystem.
func (c *oneCopy) runCommand(ctx context.Context) error {
	as := &c.as
	if len(as.Command) == 0 || c.target.Type == zfs.Volume {
		return nil
	}
	defer c.of.session.Activity("running %s in the clone of %s", as.Command[0], c.rec.Target)()
	// No retry after a lost connection: the command may still be running.
	out, err := hosts.Call(ctx, c.t.Host, hosts.OpRunInDrillClone, zfs.DrillCommand{Clone: c.clone, Argv: as.Command,
		Timeout: cmp.Or(time.Duration(as.Timeout), drillTimeout), Writable: as.Writable, KeyFile: as.KeyFile, Environment: []string{
			"ZXFER_DRILL_JOB=" + c.of.session.Job.Name, "ZXFER_DRILL_SOURCE=" + c.rec.Source, "ZXFER_DRILL_COPY=" + c.rec.Target, "ZXFER_DRILL_SNAPSHOT=" + c.rec.Snapshot}})
	if err = replicate.InKeys(err); errors.Is(err, hosts.ErrLost) {
		return fault.Interrupt("", err)
	}
	if err != nil {
		return err
	}
	c.rec.Command, c.rec.Output = "passed", out.Output
	if out.Failure != "" {
		c.rec.Command = "failed"
		return c.badCopy("to show its output: zxfer replicate log --drills --json "+c.of.session.Job.Name+c.of.session.Env.Flags, "%s: %s", as.Command[0], out.Failure)
	}
	return nil
}
