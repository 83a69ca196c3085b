package runner

import (
	"context"
	"slices"
	"time"

	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/replicate"
	"zxfer/pkg/zfs"
)

// earlyListing is a listing of a target that starts before the run takes snapshots, so that its round
// trip is not in addition to others. The batch of the target uses it, or lists the target again.
type earlyListing struct {
	batch   send.Batch // as far as send.ListTarget needs it
	done    chan struct{}
	listing zfs.Listing
	err     error
	began   time.Time
}

// maxListingAge is how old an earlyListing may be. Taking snapshots of frozen applications takes long, and
// the target may change during that time.
const maxListingAge = 10 * time.Second

// listTargets starts to list the targets to which the run may send. stop cancels that and waits. It skips
// disks, which may be detached, and relays, whose survey is not complete.
func (w *jobRun) listTargets(ctx context.Context, v *replicate.Survey) (all map[*side]*earlyListing, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	all = map[*side]*earlyListing{}
	for _, t := range w.session.Targets {
		if w.heldBatch(t) != nil || w.disk(t) != nil || len(v.DatasetsFor(t.Name)) == 0 || len(v.ToConfirm()) > 0 {
			continue
		}
		l := &earlyListing{began: time.Now(), done: make(chan struct{}), batch: send.Batch{Survey: *v.Source, Newest: listsNewest(t), Request: send.Request{
			Source: w.session.Source.At, Target: t.At, Settings: t.Transfer.Settings,
			Plan: plan.Request{Source: v.Root, Target: t.At.Name, Recursive: w.session.Job.Recursive},
		}}}
		if len(v.Unchanged) > 0 {
			l.batch.Copies = v.CopiesToList(t.Target)
		}
		all[t] = l
		go func() {
			defer close(l.done)
			l.listing, l.err = send.ListTarget(ctx, &l.batch, w.Env.Hosts)
		}()
	}
	return all, func() {
		cancel()
		for _, l := range all {
			<-l.done
		}
	}
}

// fits reports whether a batch needs this listing.
func (l *earlyListing) fits(b *send.Batch) bool {
	return len(b.Renames) == 0 && l.batch.Newest == b.Newest && slices.Equal(l.batch.Copies, b.Copies)
}

// wait returns the listing, or false if it failed or is too old.
func (l *earlyListing) wait(ctx context.Context) (zfs.Listing, bool) {
	select {
	case <-l.done:
	case <-ctx.Done():
		return zfs.Listing{}, false
	}
	return l.listing, l.err == nil && time.Since(l.began) <= maxListingAge
}
