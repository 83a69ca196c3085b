package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

func (h *healJob) look(ctx context.Context, e endpoint.Endpoint, w *transport.Settings) (*zfs.Dataset, error) {
	l, err := h.at.Get(e.Host, w).List(ctx, hosts.ListQuery{Dataset: e.Name, Versions: true, Alone: true})
	if err != nil {
		return nil, err
	}
	d := l.Find(e.Name)
	if d == nil {
		return nil, fault.Refusef("", "%s does not exist", e)
	}
	return d, nil
}

// healSnapshot heals a dataset through a snapshot of its own: taken on the source, sent to
// the copy, and from the good one back over the blocks of the damaged one. Both lose
// it in the end: see zfs.HealPrefix. A full stream of it has all blocks that the
// newest state has, whatever other snapshots share them; an increment into zfs
// receive -c heals those that were born in it.
func (h *healJob) healSnapshot(ctx context.Context, d *HealedDataset) error {
	p := d.pair
	source, target := p.ends()
	if err := h.sweep(ctx, p); err != nil { // what an interrupted one left
		return err
	}
	defer func() {
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepWithin)
		defer cancel()
		h.left = errors.Join(h.left, h.sweep(over, p))
	}()
	name := zfs.HealPrefix + h.req.Stamp
	sent, err := RunSend(ctx, Send{
		Source: source, Target: target, TakeSnapshot: name, Settings: p.Settings, Parallel: 1, Retries: h.req.Retries,
		Plan: plan.Request{Source: source.Name, Snapshot: name, Target: target.Name, LatestOnly: true},
	}, h.at, &backgroundReporter{Reporter: h.rep, what: "bringing what is new in " + source.String() + " to " + target.String()})
	if err != nil {
		if errors.Is(err, &zfs.Error{Kind: zfs.PoolFault}) && p.fromBad {
			return fault.Failf("remove or replace what is damaged in no snapshot, then the same command", "something newer than the copy is damaged: what is new cannot be read: %w", err)
		}
		return err
	}
	for _, of := range sent.Plan.Datasets {
		if len(of.Steps) == 0 {
			continue
		}
		err := h.correct(ctx, d, of)
		switch failed := (*zfs.Error)(nil); {
		case !errors.As(err, &failed) || errors.Is(err, tcp.ErrCut):
		case failed.Op == zfs.OpSend && failed.Kind == zfs.PoolFault:
			h.newer(ctx, d, of)
			return fault.Failf(fault.HintOf(err), "%s is damaged itself, and was read up to there: %w", p.good, err)
		case failed.Op == zfs.OpReceive && (failed.Kind == zfs.PoolFault || strings.Contains(failed.Detail, "not able to reconstruct")):
			return fault.Failf("what is behind such a block comes by a restore beside, to be renamed into place: zxfer restore "+
				zfs.CommandLine([]string{p.good.String() + "@" + d.common, beside(p.bad)}), "metadata is damaged, too, or a block that is not that of the copy: %w", err)
		}
		return err
	}
	return fmt.Errorf("%s: @%s did not arrive", target, name)
}

// backgroundReporter tells of a transfer that is no end in itself as of one that goes on.
type backgroundReporter struct {
	Reporter
	what string
	done func()
}

func (s *backgroundReporter) Planned(*Report)                 {}
func (s *backgroundReporter) Started(int, *plan.Dataset, int) { s.done = s.Activity(s.what) }
func (s *backgroundReporter) Progress(int, connect.Progress)  {}
func (s *backgroundReporter) Finished(int, *StepResult)       { s.done() }
func (s *backgroundReporter) Ended(*plan.Dataset, error)      {}

// sweepWithin is how long removing the snapshots may take.
const sweepWithin = time.Minute

// sweep removes the snapshots that were healed through: on the copy first, which
// would else be ahead of its source, and which is made what it was before, so that
// the next increment fits. What came to the copy since stays.
func (h *healJob) sweep(ctx context.Context, p *healPair) error {
	source, target := p.ends()
	for _, e := range []endpoint.Endpoint{target, source} {
		d, err := h.look(ctx, e, &p.Settings)
		if err != nil {
			return err
		}
		older, newer, base := healedThrough(d)
		if e == source || base == "" {
			older, newer = slices.Concat(older, newer), nil
		}
		byHand := ""
		if e == target && halfHealed(d) {
			byHand = "zfs receive -A " + zfs.CommandLine([]string{e.Name})
			err = h.at.Get(e.Host, &p.Settings).Retry(ctx, func(s hosts.Host) error { return s.DiscardPartial(ctx, e.Name) })
		}
		if len(older) > 0 && err == nil {
			byHand = "zfs destroy " + zfs.CommandLine(older)
			err = h.at.Get(e.Host, &p.Settings).Retry(ctx, func(s hosts.Host) error { return s.Destroy(ctx, older) })
		}
		if len(newer) > 0 && err == nil {
			byHand = "zfs rollback -r " + zfs.CommandLine([]string{base})
			err = h.at.Get(e.Host, &p.Settings).Retry(ctx, hosts.WithRole(func(s hosts.Healer) error { return s.Revert(ctx, base) }))
		}
		if err != nil {
			return fault.Failf("remove what is left, there: "+byHand, "%s: the snapshot that was healed through cannot be removed: %w", e, err)
		}
	}
	return nil
}

// leftovers removes what heals that were cut off left where nothing is damaged any more.
func (h *healJob) leftovers(ctx context.Context) error {
	defer h.rep.Activity("looking for what a heal that was cut off left in " + h.req.At.String())()
	q := hosts.ListQuery{Dataset: h.req.At.Name, Recursive: true, Alone: true}
	l, err := h.host.List(ctx, q)
	if err != nil {
		return err
	}
	for _, d := range l.Datasets {
		if len(h.req.pairs(d.Name)) > 0 && !slices.ContainsFunc(h.report.Datasets, func(of *HealedDataset) bool { return of.Dataset == d.Name }) {
			q.Only = append(q.Only, d.Name)
		}
	}
	switch len(q.Only) { // the snapshots of a whole pool take their time
	case 0:
		return nil
	case len(l.Datasets):
		q.Only = nil
	}
	q.Versions = true
	l, err = h.host.List(ctx, q)
	for _, d := range l.Datasets {
		older, newer, _ := healedThrough(d)
		switch left := strings.Join(slices.Concat(older, newer), " "); {
		case left == "":
		case h.req.DryRun:
			h.rep.Log("left of a heal that was cut off: " + left)
		default:
			failed := h.clean(ctx, d.Name)
			if failed == nil {
				h.rep.Log("removed " + left + ", left of a heal that was cut off")
			}
			err = errors.Join(err, failed)
		}
	}
	return err
}

// clean removes what a heal left in a dataset and its copy. A heal has one copy: which
// is in nobody's way that has none of it, or cannot be reached, where another had it.
// Where none had, that one may, and what is left here tells of it.
func (h *healJob) clean(ctx context.Context, dataset string) error {
	var errs error
	var reached []*healPair
	for _, p := range h.req.pairs(dataset) {
		err := h.lock(ctx, p)
		if err == nil {
			err = h.fit(ctx, &HealedDataset{Dataset: dataset, pair: p}) // which of both is the copy
		}
		if err == nil {
			reached = append(reached, p)
		}
		errs = errors.Join(errs, err)
	}
	if errs != nil && !slices.ContainsFunc(reached, func(p *healPair) bool { return p.left }) {
		return errs
	}
	h.changed = true
	errs = nil
	for _, p := range reached {
		errs = errors.Join(errs, h.sweep(ctx, p))
	}
	return errs
}

// healsThrough tells a snapshot that is made to be healed through.
func healsThrough(name string) bool { return strings.HasPrefix(name, zfs.HealPrefix) }

// halfHealed tells that such a snapshot was being received when that was cut off.
func halfHealed(d *zfs.Dataset) bool {
	t, err := zfs.ParseToken(d.ResumeToken())
	_, name, _ := strings.Cut(t.ToName, "@")
	return err == nil && healsThrough(name)
}

// healedThrough are the snapshots of a dataset that were healed through, by full
// names: those before and those after base, the newest of all others.
func healedThrough(d *zfs.Dataset) (older, newer []string, base string) {
	for _, v := range d.Snapshots() {
		if healsThrough(v.Name) {
			newer = append(newer, v.In(d.Name))
			continue
		}
		older, newer, base = append(older, newer...), nil, v.In(d.Name)
	}
	return older, newer, base
}

// correct streams the good blocks over the damaged ones.
func (h *healJob) correct(ctx context.Context, out *HealedDataset, of *plan.Dataset) error {
	p, arrive := out.pair, of.Arrive
	send := p.stream(out.Since, arrive.Name)
	send.Flags = of.Steps[0].Send.Flags // blocks as they were when the copy was made
	send.Flags.Embedded = false         // refused where the damaged one is encrypted; and what is embedded has its own checksum
	step := plan.Step{Kind: plan.Full, Why: "heals damaged blocks", ToGUID: arrive.GUID, Bytes: out.Bytes, Send: send,
		Receive: zfs.ReceiveSpec{Target: p.bad.Name, Corrective: true, Arrival: zfs.Arrival{
			Snapshots: []zfs.SnapshotID{{Name: arrive.Name, GUID: arrive.GUID}}, Base: out.base, Volume: of.Type == zfs.Volume, Raw: send.Flags.Raw}}}
	if out.Since != "" {
		step.Kind = plan.Incremental
	}
	d := &plan.Dataset{Source: p.good.Name, Target: p.bad.Name, Type: of.Type, Arrive: arrive, Encrypted: of.Encrypted, Steps: []plan.Step{step}}
	e := newEnds(h.at, p.good, p.bad, &p.Settings)
	if err := e.reach(ctx); err != nil {
		return err
	}
	if err := e.choose(p.Settings); err != nil {
		return err
	}
	if err := e.open(ctx, h.rep); err != nil {
		return err
	}
	out.Partly = true // from here on blocks may be healed
	req := &Send{Settings: p.Settings, Retries: h.req.Retries}
	m := &mover{ends: e, req: req, rep: h.rep}
	m.streams.Store(h.streams)
	defer func() { h.streams = m.streams.Load() }()
	return (&retrier{
		name: p.bad.Name, retries: h.req.Retries, log: h.rep.Log,
		try: func(ctx context.Context, tries int) error { return m.steps(ctx, d, d, tries) },
		// All of it again: what was healed is passed over by the kernel.
		curable: func(err, _ error) bool {
			return errors.Is(err, tcp.ErrCut) || errors.Is(err, hosts.ErrLost) || errors.Is(err, &zfs.Error{Kind: zfs.Killed}) || errors.Is(err, &zfs.Error{Kind: zfs.Busy})
		},
	}).run(ctx)
}
