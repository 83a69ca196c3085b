package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/way"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// Copy is a dataset and what a job keeps of it elsewhere. Each can heal the other.
type Copy struct {
	Source, Target endpoint.Endpoint
	Recursive      bool
	Job            string
	way.Way
}

// counterpart is a damaged dataset and one that holds the same.
type counterpart struct {
	bad, good endpoint.Endpoint
	// fromBad tells that the damaged one is the source, and the good one its copy.
	fromBad bool
	// job is that of the job file which keeps the copy, and says which is the source;
	// "" where none is known to.
	job    string
	shared []shared
	raw    bool // how the good one is sent
	way.Way
}

// shared is a snapshot that both have.
type shared struct {
	good, bad string // its names
	guid      uint64
}

// stream is one of the good one's snapshots, from is "" for a full one.
func (p *counterpart) stream(from, to string) zfs.SendSpec {
	if from != "" {
		from = "@" + from
	}
	return zfs.SendSpec{Dataset: p.good.Name, From: from, To: to, Flags: zfs.StreamFlags{Raw: p.raw, LargeBlocks: true, Compressed: true}}
}

// pairs are the counterparts of a damaged dataset. What is named may be a job's.
func (r *Heal) pairs(dataset string) (all []*counterpart) {
	bad := endpoint.Endpoint{Host: r.At.Host, Name: dataset}
	for _, c := range r.Copies {
		for _, p := range []*counterpart{{bad: c.Source, good: c.Target, fromBad: true}, {bad: c.Target, good: c.Source}} {
			below, ok := strings.CutPrefix(dataset, p.bad.Name)
			if p.bad.Host != r.At.Host || !ok || below != "" && (below[0] != '/' || !c.Recursive) {
				continue
			}
			p.good.Name += below
			p.bad, p.job, p.Way = bad, c.Job, c.Way
			all = append(all, p)
		}
	}
	if r.Copy == nil {
		return all
	}
	named := &counterpart{bad: bad, good: *r.Copy, fromBad: true}
	named.good.Name += strings.TrimPrefix(dataset, r.At.Name)
	if i := slices.IndexFunc(all, func(p *counterpart) bool { return p.good == named.good }); i >= 0 {
		named = all[i]
	}
	named.Way = r.Way
	return []*counterpart{named}
}

// source finds what a dataset can be healed from, the first that fits, and before
// others one that is not damaged itself.
func (h *healing) source(ctx context.Context, out *HealedDataset) error {
	all := h.req.pairs(out.Dataset)
	if len(all) == 0 {
		return fault.Refusef("name one: "+h.command(out.Dataset)+" HOST:COPY", "no copy of %s is known", out.Dataset)
	}
	for _, p := range all {
		if err := h.lock(ctx, p.job); err != nil {
			return err
		}
	}
	var errs []error
	var fits []HealedDataset
	for _, p := range all {
		one := HealedDataset{Dataset: out.Dataset, Copy: p.good.String(), pair: p}
		if err := h.fit(ctx, &one); err != nil {
			errs = append(errs, err)
			continue
		}
		fits = append(fits, one)
	}
	if len(fits) == 0 {
		return errs[0]
	}
	*out = fits[max(0, slices.IndexFunc(fits, func(d HealedDataset) bool { return d.Note == "" }))]
	return nil
}

// lock keeps a job from running until the streams are through: a run would take the
// snapshot that is healed through for a base.
func (h *healing) lock(ctx context.Context, job string) error {
	if _, held := h.locks[job]; held || job == "" || h.req.DryRun || h.req.Lock == nil {
		return nil
	}
	unlock, err := h.req.Lock(ctx, job)
	if err == nil {
		h.locks[job] = unlock
	}
	return err
}

func (h *healing) unlock() {
	for _, unlock := range h.locks {
		unlock()
	}
	clear(h.locks)
}

// fit tells whether a counterpart can heal a dataset, and which of both is the source.
func (h *healing) fit(ctx context.Context, out *HealedDataset) error {
	p := out.pair
	defer h.rep.Doing("looking at " + p.good.String())()
	bad, err := h.look(ctx, p.bad, &p.Way)
	if err != nil {
		return err
	}
	good, err := h.look(ctx, p.good, &p.Way)
	if err != nil {
		return err
	}
	p.raw = good.Encrypted()
	ours := func(v zfs.Version) bool { return strings.HasPrefix(v.Name, zfs.HealPrefix) }
	goods, bads := slices.DeleteFunc(good.Snapshots(), ours), slices.DeleteFunc(bad.Snapshots(), ours)
	for _, v := range goods {
		if both, ok := bad.SnapshotOf(v.GUID); ok {
			p.shared = append(p.shared, shared{good: v.Name, bad: both.Name, guid: v.GUID})
		}
	}
	if len(p.shared) == 0 {
		return fault.Refusef("", "%s and %s have no snapshot in common", p.bad, p.good)
	}
	last := p.shared[len(p.shared)-1]
	out.common = last.good
	moreGood, moreBad := goods[len(goods)-1].GUID != last.guid, bads[len(bads)-1].GUID != last.guid
	switch {
	case moreGood && moreBad:
		return fault.Refusef("", "%s and %s went separate ways after @%s", p.bad, p.good, out.common)
	case p.job != "" && (moreGood && p.fromBad || moreBad && !p.fromBad):
		source, target := p.ends()
		return fault.Refusef("", "%s has snapshots that are newer than those of %s, of which it is a copy by the job file", target, source)
	case p.job != "":
	case moreGood:
		p.fromBad = false
	case moreBad:
		p.fromBad = true
	default:
		p.fromBad = bad.Get("readonly") != "on" || good.Get("readonly") == "on" && p.fromBad
	}
	source, target := p.ends()
	copied := good
	if target == p.bad {
		copied = bad
	}
	switch {
	case copied.Get("readonly") != "on":
		return fault.Refusef("where "+target.String()+" is a copy that nobody writes to, there: zfs set readonly=on "+zfs.CommandLine([]string{target.Name}),
			"%s is not read-only: healing receives a snapshot of %s into it and rolls it back, and what was written there would be lost", target, source)
	case bad.Get("origin") != "-" && bad.Get("origin") != "":
		return fault.Refusef("", "%s is a clone: OpenZFS crashes where blocks of one are healed", p.bad)
	case !strings.Contains(target.Name, "/"):
		return fault.Refusef("", "%s is a pool's own dataset, into which no snapshot of %s can be sent by its name", target, source)
	}
	if err := h.free(ctx, target, copied, &p.Way); err != nil {
		return err
	}
	if out.Note, err = h.ill(ctx, p); err != nil && target == p.good {
		return err // who may not ask may not remove the snapshot there either
	}
	at := h.at.At(p.good.Host, &p.Way)
	return at.Again(ctx, func(s site.Site) error {
		sizes, err := s.Estimate(ctx, []zfs.SendSpec{p.stream("", out.common)})
		if err == nil && len(sizes) == 1 {
			out.Bytes = sizes[0]
		}
		return err
	})
}

// free refuses a copy into which something is received: a job that is not locked may
// run. While that is so its newest snapshot has a clone, which shows whoever receives.
func (h *healing) free(ctx context.Context, e endpoint.Endpoint, d *zfs.Dataset, w *way.Way) error {
	newest, _ := d.Latest()
	half := d.Get("receive_resume_token")
	err := h.at.At(e.Host, w).Again(ctx, func(s site.Site) error {
		have, err := s.Properties(ctx, []string{newest.In(d.Name)}, []string{"clones"})
		if strings.Contains(have[newest.In(d.Name)]["clones"].Value, "/%recv") {
			half = "now"
		}
		return err
	})
	if err == nil && half != "-" && half != "" {
		return fault.Refusef("wait for its end; one that was cut off goes on with its own command, or is given up, there: zfs receive -A "+zfs.CommandLine([]string{e.Name}),
			"%s is half received: a transfer into it is under way, or was cut off", e)
	}
	return err
}

// ill says what is wrong with a good copy, as far as its pool knows.
func (h *healing) ill(ctx context.Context, p *counterpart) (string, error) {
	var d zfs.Damage
	err := h.at.At(p.good.Host, &p.Way).Again(ctx, site.In(func(s site.Healer) (err error) {
		d, err = s.Damage(ctx, p.good.Name)
		return err
	}))
	n := d.More
	for _, t := range d.Things {
		if t.Dataset == p.good.Name && !strings.HasPrefix(t.Snapshot, zfs.HealPrefix) {
			n++
		}
	}
	switch {
	case err != nil:
		return "whether it is damaged itself is not known: " + err.Error(), err
	case n > 0:
		return "it is damaged itself, " + english.Plural(n, "error", "") + ": a stream of it ends at the first block that cannot be read", nil
	case d.Unlisted:
		return "its pool has errors, too, and does not list them: it may be damaged itself", nil
	}
	return "", nil
}

// ends are the source and its copy.
func (p *counterpart) ends() (source, target endpoint.Endpoint) {
	if p.fromBad {
		return p.bad, p.good
	}
	return p.good, p.bad
}

func (h *healing) look(ctx context.Context, e endpoint.Endpoint, w *way.Way) (*zfs.Dataset, error) {
	l, err := h.at.At(e.Host, w).List(ctx, site.ListQuery{Dataset: e.Name, Versions: true, Alone: true})
	if err != nil {
		return nil, err
	}
	d := l.Find(e.Name)
	if d == nil {
		return nil, fault.Refusef("", "%s does not exist", e)
	}
	return d, nil
}

// mend heals a dataset through a snapshot of its own: taken on the source, sent to
// the copy, and from the good one back over the blocks of the damaged one. Both lose
// it in the end: see zfs.HealPrefix. A full stream of it has all blocks that the
// newest state has, whatever other snapshots share them; an increment into zfs
// receive -c heals those that were born in it.
func (h *healing) mend(ctx context.Context, d *HealedDataset) error {
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
		Source: source, Target: target, TakeSnapshot: name, Way: p.Way, Parallel: 1, Retries: h.req.Retries,
		Plan: plan.Request{Source: source.Name, Snapshot: name, Target: target.Name, LatestOnly: true},
	}, h.at, &scratch{Reporter: h.rep, what: "bringing what is new in " + source.String() + " to " + target.String()})
	if err != nil {
		if len(sent.Results) > 0 { // half of a snapshot that goes
			over := context.WithoutCancel(ctx)
			_ = h.at.At(target.Host, &p.Way).Do(over, func(s site.Site) error { return s.DiscardPartial(over, target.Name) })
		}
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
		case !errors.As(err, &failed) || errors.Is(err, wire.ErrCut):
		case failed.Op == zfs.OpSend && failed.Kind == zfs.PoolFault:
			return fault.Failf(fault.HintOf(err), "%s is damaged itself, and was read up to there: %w", p.good, err)
		case failed.Op == zfs.OpReceive && (failed.Kind == zfs.PoolFault || strings.Contains(failed.Detail, "not able to reconstruct")):
			return fault.Failf("what is behind such a block comes by a restore beside, to be renamed into place: zxfer restore "+
				zfs.CommandLine([]string{p.good.String() + "@" + d.common, p.bad.String() + "-restored"}), "metadata is damaged, too, or a block that is not that of the copy: %w", err)
		}
		return err
	}
	return fmt.Errorf("%s: @%s did not arrive", target, name)
}

// scratch tells of a transfer that is no end in itself as of one that goes on.
type scratch struct {
	Reporter
	what string
	done func()
}

func (s *scratch) Planned(*Report)                 {}
func (s *scratch) Started(int, *plan.Dataset, int) { s.done = s.Doing(s.what) }
func (s *scratch) Progress(int, meet.Progress)     {}
func (s *scratch) Finished(int, *StepResult)       { s.done() }
func (s *scratch) Ended(*plan.Dataset, error)      {}

// sweepWithin is how long removing the snapshots may take.
const sweepWithin = time.Minute

// sweep removes the snapshots that were healed through: on the copy first, which
// would else be ahead of its source, and which is made what it was before, so that
// the next increment fits. What came to the copy since stays.
func (h *healing) sweep(ctx context.Context, p *counterpart) error {
	source, target := p.ends()
	for _, e := range []endpoint.Endpoint{target, source} {
		d, err := h.look(ctx, e, &p.Way)
		if err != nil {
			return err
		}
		older, newer, base := healedThrough(d)
		if e == source || base == "" {
			older, newer = slices.Concat(older, newer), nil
		}
		byHand := ""
		if len(older) > 0 {
			byHand = "zfs destroy " + zfs.CommandLine(older)
			err = h.at.At(e.Host, &p.Way).Again(ctx, func(s site.Site) error { return s.Destroy(ctx, older) })
		}
		if len(newer) > 0 && err == nil {
			byHand = "zfs rollback -r " + zfs.CommandLine([]string{base})
			err = h.at.At(e.Host, &p.Way).Again(ctx, site.In(func(s site.Healer) error { return s.Revert(ctx, base) }))
		}
		if err != nil {
			return fault.Failf("remove what is left, there: "+byHand, "%s: the snapshot that was healed through cannot be removed: %w", e, err)
		}
	}
	return nil
}

// leftovers removes what heals that were cut off left where nothing is damaged any more.
func (h *healing) leftovers(ctx context.Context) error {
	l, err := h.host.List(ctx, site.ListQuery{Dataset: h.req.At.Name, Recursive: true, Versions: true, Alone: true})
	for _, d := range l.Datasets {
		older, newer, _ := healedThrough(d)
		left := slices.Concat(older, newer)
		if len(left) == 0 || slices.ContainsFunc(h.report.Datasets, func(of *HealedDataset) bool { return of.Dataset == d.Name }) {
			continue
		}
		pairs := h.req.pairs(d.Name)
		if h.req.DryRun || len(pairs) == 0 {
			h.rep.Log("left of a heal that was cut off: " + strings.Join(left, " "))
			continue
		}
		for _, p := range pairs {
			if err = errors.Join(err, h.lock(ctx, p.job)); err == nil {
				h.changed = true
				err = h.fit(ctx, &HealedDataset{Dataset: d.Name, pair: p}) // which of both is the copy
			}
			if err == nil {
				err = h.sweep(ctx, p)
			}
		}
		if err == nil {
			h.rep.Log("removed " + strings.Join(left, " ") + ", left of a heal that was cut off")
		}
	}
	return err
}

// healedThrough are the snapshots of a dataset that were healed through, by full
// names: those before and those after base, the newest of all others.
func healedThrough(d *zfs.Dataset) (older, newer []string, base string) {
	for _, v := range d.Snapshots() {
		if strings.HasPrefix(v.Name, zfs.HealPrefix) {
			newer = append(newer, v.In(d.Name))
			continue
		}
		older, newer, base = append(older, newer...), nil, v.In(d.Name)
	}
	return older, newer, base
}

// correct streams the good blocks over the damaged ones.
func (h *healing) correct(ctx context.Context, out *HealedDataset, of *plan.Dataset) error {
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
	e := endsAt(h.at, p.good, p.bad, &p.Way)
	if err := e.reach(ctx); err != nil {
		return err
	}
	if err := e.choose(p.Way); err != nil {
		return err
	}
	if err := e.open(ctx, h.rep.Log); err != nil {
		return err
	}
	out.Partly = true // from here on blocks may be healed
	req := &Send{Way: p.Way, Retries: h.req.Retries}
	m := &mover{ends: e, req: req, rep: h.rep}
	m.streams.Store(h.streams)
	defer func() { h.streams = m.streams.Load() }()
	return (&effort{
		name: p.bad.Name, retries: h.req.Retries, log: h.rep.Log,
		try: func(ctx context.Context, tries int) error { return m.steps(ctx, d, tries) },
		// All of it again: what was healed is passed over by the kernel.
		curable: func(err, _ error) bool {
			return errors.Is(err, wire.ErrCut) || errors.Is(err, site.ErrLost) || errors.Is(err, &zfs.Error{Kind: zfs.Killed}) || errors.Is(err, &zfs.Error{Kind: zfs.Busy})
		},
	}).run(ctx)
}
