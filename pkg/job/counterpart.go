package job

import (
	"context"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Copy is a dataset and what a job keeps of it elsewhere. Each can heal the other.
type Copy struct {
	Source, Target endpoint.Endpoint
	Recursive      bool
	Job            string
	transport.Settings
}

// healPair is a damaged dataset and one that holds the same.
type healPair struct {
	bad, good endpoint.Endpoint
	// fromBad tells that the damaged one is the source, and the good one its copy.
	fromBad bool
	// job is that of the job file which keeps the copy, and says which is the source;
	// "" where none is known to.
	job    string
	shared []commonSnapshot
	raw    bool // how the good one is sent
	left   bool // a heal that was cut off left something in the good one
	transport.Settings
}

// commonSnapshot is a snapshot that both have.
type commonSnapshot struct {
	good, bad string // its names
	guid      uint64
}

// stream is one of the good one's snapshots, from is "" for a full one.
func (p *healPair) stream(from, to string) zfs.SendSpec {
	if from != "" {
		from = "@" + from
	}
	return zfs.SendSpec{Dataset: p.good.Name, From: from, To: to, Flags: zfs.StreamFlags{Raw: p.raw, LargeBlocks: true, Compressed: true}}
}

// same tells that two name one dataset, as whoever.
func same(a, b endpoint.Endpoint) bool { return a.HostName() == b.HostName() && a.Name == b.Name }

// covers tells that one of its ends has a dataset.
func (c *Copy) covers(end, e endpoint.Endpoint) bool {
	below, ok := strings.CutPrefix(e.Name, end.Name)
	return ok && end.HostName() == e.HostName() && (below == "" || c.Recursive && below[0] == '/')
}

// pairs are the counterparts of a damaged dataset. What is named may be a job's.
func (r *Heal) pairs(dataset string) (all []*healPair) {
	bad := endpoint.Endpoint{Host: r.At.Host, Name: dataset}
	for _, c := range r.Copies {
		for _, p := range []*healPair{{bad: c.Source, good: c.Target, fromBad: true}, {bad: c.Target, good: c.Source}} {
			if !c.covers(p.bad, bad) {
				continue
			}
			p.good.Name += strings.TrimPrefix(dataset, p.bad.Name)
			p.bad, p.job, p.Settings = bad, c.Job, c.Settings
			all = append(all, p)
		}
	}
	if r.Copy == nil {
		return all
	}
	named := &healPair{bad: bad, good: *r.Copy, fromBad: true}
	named.good.Name += strings.TrimPrefix(dataset, r.At.Name)
	if i := slices.IndexFunc(all, func(p *healPair) bool { return same(p.good, named.good) }); i >= 0 {
		named.fromBad, named.job = all[i].fromBad, all[i].job
	}
	named.Settings = r.Settings
	return []*healPair{named}
}

// source finds what a dataset can be healed from, the first that fits, and before
// others one that is not damaged itself.
func (h *healJob) source(ctx context.Context, out *HealedDataset) error {
	all := h.req.pairs(out.Dataset)
	if len(all) == 0 {
		return fault.Refusef("name one: "+h.command(out.Dataset)+" HOST:COPY", "no copy of %s is known", out.Dataset)
	}
	for _, p := range all {
		if err := h.lock(ctx, p); err != nil {
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

// lock keeps all jobs of both from running until the streams are through: a run would
// take the snapshot that is healed through for a base, wherever it brings it.
func (h *healJob) lock(ctx context.Context, p *healPair) error {
	if h.req.DryRun || h.req.Lock == nil {
		return nil
	}
	for _, c := range h.req.Copies {
		if _, held := h.locks[c.Job]; held || c.Job == "" || !slices.ContainsFunc([]endpoint.Endpoint{p.bad, p.good}, func(e endpoint.Endpoint) bool {
			return c.covers(c.Source, e) || c.covers(c.Target, e)
		}) {
			continue
		}
		unlock, err := h.req.Lock(ctx, c.Job)
		if err != nil {
			return err
		}
		h.locks[c.Job] = unlock
	}
	return nil
}

func (h *healJob) unlock() {
	for _, unlock := range h.locks {
		unlock()
	}
	clear(h.locks)
}

// fit tells whether a counterpart can heal a dataset, and which of both is the source.
func (h *healJob) fit(ctx context.Context, out *HealedDataset) error {
	p := out.pair
	defer h.rep.Activity("looking at " + p.good.String())()
	bad, err := h.look(ctx, p.bad, &p.Settings)
	if err != nil {
		return err
	}
	good, err := h.look(ctx, p.good, &p.Settings)
	if err != nil {
		return err
	}
	if err := p.turn(bad, good); err != nil {
		return err
	}
	out.common = p.shared[len(p.shared)-1].good
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
	if err := h.free(ctx, target, copied, &p.Settings); err != nil {
		return err
	}
	if out.Note, err = h.ill(ctx, p); err != nil && target == p.good {
		return err // who may not ask may not remove the snapshot there either
	}
	sizes, err := hosts.Call(ctx, h.at.Get(p.good.Host, &p.Settings).Retry, hosts.Lister.Estimate, []zfs.SendSpec{p.stream("", out.common)})
	if err == nil && len(sizes) == 1 {
		out.Bytes = sizes[0]
	}
	return err
}

// turn finds what both have, and which of both is the source: what the job says, else
// what has newer snapshots, else what may be written to.
func (p *healPair) turn(bad, good *zfs.Dataset) error {
	p.raw = good.Encrypted()
	older, newer, _ := healedThrough(good)
	p.left = len(older)+len(newer) > 0 || halfHealed(good)
	ours := func(v zfs.Version) bool { return healsThrough(v.Name) }
	goods, bads := slices.DeleteFunc(good.Snapshots(), ours), slices.DeleteFunc(bad.Snapshots(), ours)
	for _, v := range goods {
		if both, ok := bad.SnapshotOf(v.GUID); ok {
			p.shared = append(p.shared, commonSnapshot{good: v.Name, bad: both.Name, guid: v.GUID})
		}
	}
	if len(p.shared) == 0 {
		return fault.Refusef("", "%s and %s have no snapshot in common", p.bad, p.good)
	}
	last := p.shared[len(p.shared)-1]
	moreGood, moreBad := goods[len(goods)-1].GUID != last.guid, bads[len(bads)-1].GUID != last.guid
	switch {
	case moreGood && moreBad:
		return fault.Refusef("", "%s and %s went separate ways after @%s", p.bad, p.good, last.good)
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
	return nil
}

// free refuses a copy into which something is received: a job that is not locked may
// run. While that is so its newest snapshot has a clone, which shows whoever receives.
func (h *healJob) free(ctx context.Context, e endpoint.Endpoint, d *zfs.Dataset, w *transport.Settings) error {
	if halfHealed(d) {
		return nil // of a heal that was cut off, or holds on to it when that is swept
	}
	newest, _ := d.Latest()
	half := d.ResumeToken()
	have, err := h.at.Get(e.Host, w).Properties(ctx, []string{newest.In(d.Name)}, []string{"clones"})
	if strings.Contains(have[newest.In(d.Name)]["clones"].Value, "/%recv") {
		half = "now"
	}
	if err == nil && half != "-" && half != "" {
		return fault.Refusef("wait for its end; one that was cut off goes on with its own command, or is given up, there: zfs receive -A "+zfs.CommandLine([]string{e.Name}),
			"%s is half received: a transfer into it is under way, or was cut off", e)
	}
	return err
}

// ill says what is wrong with a good copy, as far as its pool knows.
func (h *healJob) ill(ctx context.Context, p *healPair) (string, error) {
	d, err := damage(ctx, h.at.Get(p.good.Host, &p.Settings), p.good.Name)
	n := d.More
	for _, t := range d.Things {
		if t.Dataset == p.good.Name {
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
func (p *healPair) ends() (source, target endpoint.Endpoint) {
	if p.fromBad {
		return p.bad, p.good
	}
	return p.good, p.bad
}
