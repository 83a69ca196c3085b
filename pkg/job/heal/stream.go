package heal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/retry"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// heal heals a dataset through heal snapshots. If the damaged blocks are refused, it sends the whole
// stream.
func (h *healJob) heal(ctx context.Context, d *healing) error {
	err := h.retrySnapshot(ctx, d)
	if why := d.refusal(err); why != "" && ctx.Err() == nil {
		d.useWhole(h.rep, why)
		err = h.retrySnapshot(ctx, d)
	}
	if err == nil && d.report.Since != "" && len(d.only) > 0 && !d.complete {
		d.useFull(h.rep)
		err = h.retrySnapshot(ctx, d)
	}
	switch failed := (*zfs.Error)(nil); {
	case !errors.As(err, new(*streamError)) || !errors.As(err, &failed) || errors.Is(err, tcp.ErrConnectionLost):
	case failed.Op == zfs.OpSend && failed.Kind == zfs.PoolFault:
		h.healNewer(ctx, d)
		return fault.Failf(fault.HintOf(err), "%s is damaged, and was read up to there: %w", d.pair.good, err)
	case cannotReconstruct(failed):
		return fault.Failf(d.pair.restoreHint("restore the data after that block", d.common), "metadata is also damaged, or a block differs from the copy's: %w", err)
	}
	return err
}

// retrySnapshot repeats an interrupted healSnapshot. Each try has its own snapshot: after the kernel
// refused a block, its copy of the block pointer has the checksum of the refused data, and would accept
// that in a second try (2.3.9).
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/module/zfs/dmu_recv.c (do_corrective_recv)
func (h *healJob) retrySnapshot(ctx context.Context, d *healing) error {
	l := ends.NewLoop(d.pair.bad.Name, h.req.Retries, h.rep.Log)
	named := l.Fail
	l.Fail = func(err error, end retry.End) error {
		if end == retry.NotRetryable && !errors.As(err, new(*streamError)) {
			return err
		}
		return named(err, end)
	}
	l.Try = func(ctx context.Context, _ int) error { return h.healSnapshot(ctx, d) }
	l.Retryable = func(err, _ error) bool { // send everything again: the kernel skips healed blocks
		return fault.ClassOf(err) != fault.Interrupted && (errors.Is(err, tcp.ErrConnectionLost) || errors.Is(err, hosts.ErrLost) ||
			errors.Is(err, &zfs.Error{Kind: zfs.Killed}) || errors.Is(err, &zfs.Error{Kind: zfs.Busy}))
	}
	return l.Run(ctx)
}

// streamError is an error of a corrective stream, not of the snapshot before it.
type streamError struct{ error }

func (e *streamError) Unwrap() error { return e.error }

// healSnapshot heals a dataset with a heal snapshot (see zfs.HealPrefix). It takes the snapshot
// on the source, sends it to the copy, and sends it from the good dataset into zfs receive -c on
// the damaged one. Finally it destroys the snapshot on both. A full stream contains all blocks of
// the live data. An incremental stream heals only blocks born after its incremental source.
func (h *healJob) healSnapshot(ctx context.Context, d *healing) error {
	p := d.pair
	source, target := p.ends()
	if err := h.destroyHealSnapshots(ctx, p); err != nil { // of an interrupted heal
		return err
	}
	defer func() {
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		d.cleanupErr = h.destroyHealSnapshots(over, p)
	}()
	name := zfs.HealPrefix + h.req.SnapshotSuffix
	sent, err := send.Run(ctx, send.Request{
		Source: source, Target: target, TakeSnapshot: name, AllChecks: true, Settings: p.Settings, Parallel: 1, Retries: h.req.Retries,
		Plan: plan.Request{Source: source.Name, Snapshot: name, Target: target.Name, LatestOnly: true},
	}, h.at, &backgroundReporter{Reporter: h.rep, text: "sending the changes of " + source.String() + " to " + target.String()})
	if err != nil {
		if errors.Is(err, &zfs.Error{Kind: zfs.PoolFault}) && p.fromBad {
			return fault.Failf("delete or replace the damaged files that are in no snapshot, then run the same command again", "data newer than the copy is damaged and cannot be read: %w", err)
		}
		return err
	}
	for _, of := range sent.Plan.Datasets {
		if len(of.Steps) == 0 {
			continue
		}
		if err := h.sendCorrective(ctx, d, of); err != nil {
			return &streamError{err}
		}
		return nil
	}
	return fmt.Errorf("%s: @%s was not received", target, name)
}

// backgroundReporter reports a transfer as one activity instead of a stream.
type backgroundReporter struct {
	send.Reporter
	text string
	done func()
}

func (s *backgroundReporter) Planned(*send.Report)            {}
func (s *backgroundReporter) Started(int, *plan.Dataset, int) { s.done = s.Activity(s.text) }
func (s *backgroundReporter) Progress(int, connect.Progress)  {}
func (s *backgroundReporter) Finished(int, *send.StepResult)  { s.done() }
func (s *backgroundReporter) Ended(*plan.Dataset, error)      {}

// sendCorrective sends the good blocks into zfs receive -c on the damaged dataset.
func (h *healJob) sendCorrective(ctx context.Context, out *healing, of *plan.Dataset) error {
	p, arrive := out.pair, of.Final
	spec := p.stream(out.report.Since, arrive.Name)
	spec.Flags = of.Steps[0].Send.Flags // the flags with which the copy was made
	spec.Flags.Embedded = false         // refused for encrypted datasets; embedded blocks have their own checksum
	step := plan.Step{Kind: plan.Full, Why: "heals damaged blocks", ToGUID: arrive.GUID, Bytes: out.report.Bytes, Send: spec,
		Receive: zfs.ReceiveSpec{Target: p.bad.Name, Corrective: true, Only: out.only, Arrival: zfs.Arrival{
			Snapshots: []zfs.SnapshotID{{Name: arrive.Name, GUID: arrive.GUID}}, Base: out.base, Volume: of.Type == zfs.Volume, Raw: spec.Flags.Raw}}}
	if out.report.Since != "" {
		step.Kind = plan.Incremental
	}
	d := &plan.Dataset{Source: p.good.Name, Target: p.bad.Name, Type: of.Type, Final: arrive, Encrypted: of.Encrypted, Steps: []plan.Step{step}}
	req := send.Request{Source: p.good, Target: p.bad, Settings: p.Settings, Retries: h.req.Retries}
	results, err := send.RunPlanned(ctx, req, d, h.streams, h.at, h.rep)
	h.streams += len(results)
	for _, r := range results {
		out.report.Partial = true // blocks may be healed
		out.complete = len(out.only) > 0 && r.Error == "" && r.Blocks >= out.only.Total()
		read := cmp.Or(r.ReadBytes, r.Bytes)
		out.report.Read += read
		if p.relayed {
			out.report.Sent += read
		} else {
			out.report.Sent += r.Bytes
		}
	}
	return err
}

// healNewer heals the data after the block that the good dataset cannot read, with the longest
// incremental stream that works.
func (h *healJob) healNewer(ctx context.Context, d *healing) {
	after := slices.IndexFunc(d.pair.shared, func(s commonSnapshot) bool { return s.good == d.report.Since }) + 1
	rest := d.pair.shared[after:]
	sort.Search(len(rest), func(i int) bool {
		part, report := *d, *d.report
		part.report = &report
		part.report.Since, part.base, part.report.Bytes = rest[i].good, rest[i].guid, 0
		healed := ctx.Err() != nil || h.retrySnapshot(ctx, &part) == nil
		d.report.Sent, d.report.Read, d.cleanupErr = part.report.Sent, part.report.Read, part.cleanupErr
		return healed
	})
}

// cleanUpAll destroys what interrupted heals left in datasets that are no longer damaged.
func (h *healJob) cleanUpAll(ctx context.Context) error {
	defer h.rep.Activity("searching for leftovers of an interrupted heal in " + h.req.At.String())()
	q := hosts.ListQuery{Dataset: h.req.At.Name, Recursive: true, NoAncestors: true}
	l, err := h.host.List(ctx, q)
	if err != nil {
		return err
	}
	for _, d := range l.Datasets {
		if len(h.req.pairs(d.Name)) > 0 && !slices.ContainsFunc(h.report.Datasets, func(of *Dataset) bool { return of.Dataset == d.Name }) {
			q.Only = append(q.Only, d.Name)
		}
	}
	switch len(q.Only) { // listing all snapshots of a pool takes long
	case 0:
		return nil
	case len(l.Datasets):
		q.Only = nil
	}
	q.Versions = true
	l, err = h.host.List(ctx, q)
	for _, d := range l.Datasets {
		older, newer, _ := healSnapshots(d)
		switch left := strings.Join(slices.Concat(older, newer), " "); {
		case left == "":
		case h.req.DryRun:
			h.rep.Log("left by an interrupted heal: " + left)
		default:
			failed := h.cleanUpDataset(ctx, d.Name)
			if failed == nil {
				h.rep.Log("removed " + left + ", left by an interrupted heal")
			}
			err = errors.Join(err, failed)
		}
	}
	return err
}

// cleanUpDataset destroys what a heal left in a dataset and its copy. A heal used only one copy.
// If such a copy is found, errors from other copies do not matter. Otherwise any unreachable copy
// may be the one, so its error is returned and the leftovers remain as a marker.
func (h *healJob) cleanUpDataset(ctx context.Context, dataset string) error {
	var errs error
	var reached []*healPair
	for _, p := range h.req.pairs(dataset) {
		err := h.copies.lock(ctx, p)
		if err == nil {
			err = h.copies.check(ctx, &healing{report: &Dataset{Dataset: dataset}, pair: p}) // finds out which one is the copy
		}
		if err == nil {
			reached = append(reached, p)
		}
		errs = errors.Join(errs, err)
	}
	if errs != nil && !slices.ContainsFunc(reached, func(p *healPair) bool { return p.hasLeftovers }) {
		return errs
	}
	h.changed = true
	errs = nil
	for _, p := range reached {
		errs = errors.Join(errs, h.destroyHealSnapshots(ctx, p))
	}
	return errs
}

// cleanupTimeout limits destroying the heal snapshots.
const cleanupTimeout = time.Minute

// destroyHealSnapshots destroys the heal snapshots on the copy and then on the source. The copy
// is rolled back to the snapshot before, so that the next incremental stream applies. Snapshots
// that arrived since are kept.
func (h *healJob) destroyHealSnapshots(ctx context.Context, p *healPair) error {
	source, target := p.ends()
	for _, e := range []endpoint.Endpoint{target, source} {
		d, err := h.copies.dataset(ctx, e, &p.Settings)
		if err != nil {
			return err
		}
		older, newer, base := healSnapshots(d)
		if e == source || base == "" {
			older, newer = slices.Concat(older, newer), nil
		}
		conn := h.at.Get(e.Host, &p.Settings)
		byHand, at := "", hosts.By(conn.Retry)
		if e == target && isReceivingHealSnapshot(d) {
			byHand = conn.Command("zfs", "receive", "-A", e.Name)
			err = hosts.Run(ctx, at, hosts.OpDiscardPartial, e.Name)
		}
		if len(older) > 0 && err == nil {
			byHand = conn.Command(append([]string{"zfs", "destroy"}, older...)...)
			err = hosts.Run(ctx, at, hosts.OpDestroy, older)
		}
		if len(newer) > 0 && err == nil {
			byHand = conn.Command("zfs", "rollback", "-r", base)
			err = hosts.Run(ctx, at, hosts.OpRevert, base)
		}
		if err != nil {
			return fault.Failf("remove the leftovers: "+byHand, "%s: cannot destroy the snapshot of the heal: %w", e, err)
		}
	}
	return nil
}
