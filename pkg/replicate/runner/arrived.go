package runner

import (
	"context"
	"errors"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decision"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// recordBatches adds the results of all batches to the record and the state, and returns what the run knows now.
// missed has the errors of datasets without their due snapshot.
func recordBatches(ctx context.Context, p *pass, v *decision.Survey, batches []*batch, missed map[string]error) *decision.RunState {
	after := &decision.RunState{Survey: v}
	for i, b := range batches {
		p.rec.Targets[i] = b.record(len(v.UnchangedAt(b.to.Name)))
		if !b.absent {
			p.ledger.Confirm(func(*statedir.State) { b.updateState(v, missed) })
		}
		after.Targets = append(after.Targets, b.targetState())
		for _, d := range b.result.Datasets {
			if d.Unset != nil { // properties of its source
				p.journal.Note("%s: %v: %s", b.to.Name, d.Unset, fault.HintOf(d.Unset))
			}
		}
		if b.err == nil && ctx.Err() == nil {
			recordOrigins(ctx, p, v, b)
		}
		v.AddBookmarks(b.protected.bookmarks)
	}
	return after
}

// recordOrigins records on the copies of a batch the properties that they need to replace their
// source. It writes only changed records. A missing permission, or a command that a host without
// zxfer does not permit, is not an error: promote then asks for the mountpoint.
func recordOrigins(ctx context.Context, p *pass, v *decision.Survey, b *batch) {
	copies := b.result.Target.ByName()
	var changes []hosts.Change
	for _, d := range v.DatasetsFor(b.to.Name) {
		copied := copies[b.to.Target.CopyOf(v.Root, d.Name)]
		if copied == nil || copied.Inconsistent() {
			continue
		}
		if change := originChange(ctx, p.s, d, copied, b.to, d.Name == v.Root); change != nil {
			changes = append(changes, hosts.OpSetProperties.Change(*change))
		}
	}
	done, err := hosts.Apply(ctx, b.to, changes)
	if err == nil {
		return
	}
	f, _ := b.to.Host.Facts(ctx) // cached
	if !errors.Is(err, hosts.ErrForbidden) && !errors.Is(err, &zfs.Error{Kind: zfs.Permission}) && f.NoAgent == "" {
		p.journal.Note("%s: cannot record the properties of the source on %s: %v", b.to.Name, changes[done].Args.(zfs.PropertyChange).Dataset, err)
	}
}

// originChange returns the change of the records on a copy, or nil if they are up to date.
func originChange(ctx context.Context, s *session.Session, d, copied *zfs.Dataset, t *session.Side, root bool) *zfs.PropertyChange {
	o, want := zfs.OriginOf(d, root), ""
	if root {
		o.Job, o.Target, o.Source = s.Job.Name, t.Target.Pair(), s.Source.At.String()
		if f, err := s.Source.Host.Facts(ctx); err == nil {
			o.Host = f.Hostname
		}
	}
	if root || len(o.Set) > 0 {
		want = o.Encode()
	}
	return replicate.RecordChange(copied, want, t.Target.SettingsOf(d, root).Encode())
}
