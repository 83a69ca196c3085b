package drill

import (
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
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/preflight"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// stream reads the copy as a send stream. If both sides are encrypted, a raw stream needs no key.
func (c *oneCopy) stream(ctx context.Context) error {
	raw := c.target.Encrypted() && (c.source == nil || c.source.Encrypted()) && !c.t.Transfer.Decrypt
	size, keyFile := "logicalreferenced", c.as.KeyFile
	if raw {
		size, keyFile = "referenced", ""
	}
	var target, source hosts.Digest
	err := c.withProgress(ctx, size, 1, func(progress func(transfer.Progress)) (_ uint64, err error) {
		target, source, err = readBoth(ctx, c, c.rec.Target+"@"+c.rec.Snapshot, keyFile, progress,
			func(ctx context.Context, s *session.Side, snapshot, keyFile string, progress func(transfer.Progress)) (hosts.Digest, error) {
				dataset, name, _ := strings.Cut(snapshot, "@")
				q := hosts.ContentQuery{SendSpec: zfs.SendSpec{Dataset: dataset, To: name, Flags: zfs.StreamFlags{Raw: raw, LargeBlocks: !raw}}, Seed: c.of.options.Seed, KeyFile: keyFile}
				return hosts.Watch(ctx, s, hosts.OpDigest, q, progress)
			})
		return target.Bytes, err
	})
	if err != nil {
		return err
	}
	c.rec.Read, c.rec.Bytes = "stream", target.Bytes
	if c.rec.Compared && target.SameContents(source) && target.BlockSizes != source.BlockSizes {
		c.of.note("%s: %s", c.rec.Target, zfs.OtherBlockSizes)
	}
	if c.rec.Compared && !target.SameContents(source) {
		where := ""
		if from, to, err := zfs.FirstDifference(source, target); err == nil {
			where = fmt.Sprintf(": the first that differs is one of the objects %d to %d", from, to-1)
		}
		return c.badCopy(c.differenceHint(), "its contents differ from %s%s", c.sourceSnapshot, where)
	}
	return nil
}

// withProgress reports the progress of read. The expected size is share times the snapshot's property
// size.
func (c *oneCopy) withProgress(ctx context.Context, size string, share float64, read func(progress func(transfer.Progress)) (uint64, error)) error {
	name := c.rec.Target + "@" + c.rec.Snapshot
	found, _ := c.t.Properties(ctx, []string{name}, size) // on error the total is unknown
	all, _ := strconv.ParseUint(found[name][size].Value, 10, 64)
	total := uint64(float64(all) * share)
	rep, began := c.of.session.Env.ReportTo(c.of.session.Job.Name, c.t.Name), time.Now()
	rep.Started(1, &plan.Dataset{Source: c.rec.Target, Steps: []plan.Step{{Send: zfs.SendSpec{To: c.rec.Snapshot}, Bytes: total}}}, 0)
	_, tell := connect.Watch(total, func(p connect.Progress) { rep.Progress(1, p) })
	bytes, err := read(tell)
	r := &send.StepResult{Bytes: bytes, Speed: connect.SpeedOf(bytes, time.Since(began).Seconds())}
	if err != nil {
		r.Error = err.Error()
	}
	rep.Finished(1, r)
	return err
}

// readBoth reads the copy and, for comparison, the source's snapshot at the same time. Errors of the
// source are only noted, because they say nothing about the copy.
func readBoth[D any](ctx context.Context, c *oneCopy, name, keyFile string, progress func(transfer.Progress),
	read func(ctx context.Context, s *session.Side, name, keyFile string, progress func(transfer.Progress)) (D, error)) (target, source D, err error) {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		target, err = read(gctx, c.t, name, keyFile, progress)
		return c.checkReadError(ctx, err)
	})
	if c.sourceSnapshot != "" {
		c.rec.Compared, c.rec.Note = false, ""
		g.Go(func() (err error) {
			source, err = read(gctx, c.of.session.Source, c.sourceSnapshot, "", nil)
			if c.rec.Compared, c.sourceErr = err == nil, err; err != nil {
				c.rec.Note = "not compared: " + err.Error()
			}
			return nil
		})
	}
	err = g.Wait()
	return target, source, err
}

// checkReadError marks the copy as bad if err is a read error of the copy itself. Errors of its key, the
// host or zxfer prove nothing.
func (c *oneCopy) checkReadError(ctx context.Context, err error) error {
	var of *zfs.Error
	errors.As(err, &of)
	switch {
	case err == nil, ctx.Err() != nil, outcome.Of(err) != outcome.Failed, errors.Is(err, hosts.ErrLost):
	case of == nil: // an error of zxfer
	case of.Op == zfs.OpLoadKey, of.Op == zfs.OpUnloadKey, of.Op == zfs.OpList, slices.Contains(unrelatedKinds(), of.Kind):
	default:
		c.bad = true
		if of.Kind == zfs.PoolFault {
			return &fault.Error{Class: fault.ClassOf(err), Hint: c.healHint(ctx), Err: err}
		}
	}
	return err
}

// healHint returns the commands that repair unreadable blocks of the copy with data of its source.
// The scrub lists the errors: those found in a clone are listed without names after its
// destruction.
func (c *oneCopy) healHint(ctx context.Context) string {
	pool := zfs.PoolOf(c.rec.Target)
	hint := "scrub its pool: " + c.t.Host.Command("zpool", "scrub", "-w", pool) + "\n"
	if facts, err := c.t.Host.Facts(ctx); err == nil && !preflight.CanHeal(facts.ZFS) {
		return hint + "OpenZFS " + facts.ZFS + " cannot heal blocks: restore or send the damaged files"
	}
	return hint + "then repair it from its source: " + c.of.session.HealCommand()
}

// unrelatedKinds returns the kinds of errors that prove nothing about the data.
func unrelatedKinds() []zfs.Kind {
	return []zfs.Kind{zfs.KeyMissing, zfs.Permission, zfs.NotSupported, zfs.NoSpace, zfs.NoZFS, zfs.NotFound, zfs.Busy, zfs.Killed, zfs.Feature}
}

// badCopy returns an error that proves the copy bad. Other errors leave its condition unknown.
func (c *oneCopy) badCopy(hint, format string, args ...any) error {
	c.bad = true
	return fault.Failf(hint, format, args...)
}
