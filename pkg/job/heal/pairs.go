package heal

import (
	"context"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Copy is a source dataset and its copy, as a job keeps them. Each can heal the other.
type Copy struct {
	Source, Target endpoint.Endpoint
	Recursive      bool
	Job            string
	transport.Settings
}

// healPair is a damaged dataset and a good dataset with the same snapshots.
type healPair struct {
	bad, good endpoint.Endpoint
	// fromBad means that the damaged dataset is the source and the good one its copy.
	fromBad bool
	// job names the job that keeps the copy and thus defines the source, "" if no job is known.
	job          string
	shared       []commonSnapshot
	raw          bool // the good dataset is sent raw
	hasLeftovers bool // an interrupted heal left something in the good dataset
	relayed      bool // zxfer does not run on the good dataset's host
	blockSize    uint64
	transport.Settings
}

// commonSnapshot is a snapshot that both datasets have.
type commonSnapshot struct {
	good, bad string // names
	guid      uint64
}

// copyFinder finds the copies that can heal, and locks their jobs.
type copyFinder struct {
	req      *Request
	at       *hosts.Set
	rep      send.Reporter
	locks    map[string]func() // unlock functions by job
	errorsOf ErrorsOf          // asks for the errors of a copy; nil = its host
}

// choose chooses the good dataset to heal a damaged one from: the first usable one, preferably one without known
// damage. With an error, the result has no copy.
func (f *copyFinder) choose(ctx context.Context, dataset string) (*healing, error) {
	none := &healing{report: &Dataset{Dataset: dataset}}
	all := f.req.pairs(dataset)
	if len(all) == 0 {
		return none, fault.Refusef("name a copy: "+f.req.command(dataset)+" HOST:COPY", "no copy of %s is known", dataset)
	}
	for _, p := range all {
		if err := f.lock(ctx, p); err != nil {
			return none, err
		}
	}
	var errs []error
	var fits []*healing
	for _, p := range all {
		one := &healing{report: &Dataset{Dataset: dataset, Copy: p.good.String()}, pair: p}
		if err := f.check(ctx, one); err != nil {
			errs = append(errs, err)
			continue
		}
		fits = append(fits, one)
	}
	if len(fits) == 0 { // an unreachable copy may be usable, unlike a refused one
		return none, errs[max(0, slices.IndexFunc(errs, func(err error) bool { return !isDecided(err) }))]
	}
	return fits[max(0, slices.IndexFunc(fits, func(d *healing) bool { return d.report.Note == "" }))], nil
}

// pairs returns the possible pairs for a damaged dataset: the copy that the user named, which a
// job may keep too, otherwise the copies of all jobs or of the requested one.
func (r *Request) pairs(dataset string) (all []*healPair) {
	bad := endpoint.Endpoint{Host: r.At.Host, Name: dataset}
	for _, c := range r.Copies {
		if r.Job != "" && c.Job != r.Job {
			continue
		}
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
	if i := slices.IndexFunc(all, func(p *healPair) bool { return sameDataset(p.good, named.good) }); i >= 0 {
		named.fromBad, named.job = all[i].fromBad, all[i].job
	}
	named.Settings = r.Settings
	return []*healPair{named}
}

// lock prevents all jobs of both datasets from running until the streams end. A run could use the
// heal snapshot as incremental source.
func (f *copyFinder) lock(ctx context.Context, p *healPair) error {
	if f.req.DryRun || f.req.Lock == nil {
		return nil
	}
	for _, c := range f.req.Copies {
		if _, held := f.locks[c.Job]; held || c.Job == "" || !slices.ContainsFunc([]endpoint.Endpoint{p.bad, p.good}, func(e endpoint.Endpoint) bool {
			return c.covers(c.Source, e) || c.covers(c.Target, e)
		}) {
			continue
		}
		unlock, err := f.req.Lock(ctx, c.Job)
		if err != nil {
			return err
		}
		f.locks[c.Job] = unlock
	}
	return nil
}

func (f *copyFinder) unlock() {
	for _, unlock := range f.locks {
		unlock()
	}
	clear(f.locks)
}

// check checks whether a pair can heal, and completes it: common snapshots, roles, size and
// notes.
func (f *copyFinder) check(ctx context.Context, out *healing) error {
	p := out.pair
	defer f.rep.Activity("inspecting " + p.good.String())()
	bad, err := f.dataset(ctx, p.bad, &p.Settings)
	if err != nil {
		return err
	}
	good, err := f.dataset(ctx, p.good, &p.Settings)
	if err != nil {
		return err
	}
	if err := p.chooseRoles(bad, good); err != nil {
		return err
	}
	out.common, p.blockSize = p.shared[len(p.shared)-1].good, blockSize(bad)
	facts, err := f.at.Get(p.good.Host, &p.Settings).Facts(ctx)
	if err != nil {
		return err
	}
	p.relayed = facts.NoAgent != ""
	source, target := p.ends()
	copied := good
	if target == p.bad {
		copied = bad
	}
	switch {
	case copied.Get("readonly") != "on":
		return fault.Refusef("if "+target.String()+" is a copy without writers, run: "+f.at.Get(target.Host, &p.Settings).Command("zfs", "set", "readonly=on", target.Name),
			"%s is not read-only: healing receives a snapshot of %s into it and rolls it back, destroying newer data", target, source)
	case bad.Get("origin") != "-" && bad.Get("origin") != "":
		return fault.Refusef("", "%s is a clone: OpenZFS crashes if blocks of a clone are healed", p.bad)
	case !strings.Contains(target.Name, "/"):
		return fault.Refusef("", "%s is the root dataset of a pool: zxfer cannot send a snapshot of %s into it", target, source)
	}
	if err := f.checkIdle(ctx, target, copied, &p.Settings); err != nil {
		return err
	}
	if out.report.Note, err = f.note(ctx, p); err != nil && target == p.good {
		return err // without this permission the snapshot there cannot be destroyed either
	}
	sizes, err := hosts.Estimate(ctx, hosts.By(f.at.Get(p.good.Host, &p.Settings).Retry), []zfs.SendSpec{p.stream("", out.common)})
	if err == nil && len(sizes) == 1 {
		out.report.Bytes = sizes[0]
	}
	return err
}

// chooseRoles finds the common snapshots and which dataset is the source: by the job, then by
// newer snapshots, then by readonly.
func (p *healPair) chooseRoles(bad, good *zfs.Dataset) error {
	p.raw = good.Encrypted()
	older, newer, _ := healSnapshots(good)
	p.hasLeftovers = len(older)+len(newer) > 0 || isReceivingHealSnapshot(good)
	ours := func(v zfs.Version) bool { return isHealSnapshot(v.Name) }
	goods, bads := slices.DeleteFunc(good.Snapshots(), ours), slices.DeleteFunc(bad.Snapshots(), ours)
	onBad := bad.SnapshotsByGUID()
	for _, v := range goods {
		if both, ok := onBad[v.GUID]; ok {
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
		return fault.Refusef("", "%s and %s diverged after @%s", p.bad, p.good, last.good)
	case p.job != "" && (moreGood && p.fromBad || moreBad && !p.fromBad):
		source, target := p.ends()
		return fault.Refusef("", "%s is newer than %s, although the job file says that it is a copy of it", target, source)
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

// checkIdle refuses a copy that is being received into, as a job without a lock may run. During a
// receive its newest snapshot has a clone.
func (f *copyFinder) checkIdle(ctx context.Context, e endpoint.Endpoint, d *zfs.Dataset, w *transport.Settings) error {
	if isReceivingHealSnapshot(d) {
		return nil // left by an interrupted heal; cleanup fails if it still runs
	}
	newest, _ := d.Latest()
	half := d.ResumeToken()
	have, err := f.at.Get(e.Host, w).Properties(ctx, []string{newest.In(d.Name)}, []string{"clones"})
	if strings.Contains(have[newest.In(d.Name)]["clones"].Value, "/%recv") {
		half = "now"
	}
	if err == nil && half != "-" && half != "" {
		return fault.Refusef("wait until it ends; resume an interrupted one with its command, or abort it: "+f.at.Get(e.Host, w).Command("zfs", "receive", "-A", e.Name),
			"%s is partially received: a transfer into it is running, or was interrupted", e)
	}
	return err
}

// note describes known damage of the good dataset, "" if there is none.
func (f *copyFinder) note(ctx context.Context, p *healPair) (string, error) {
	errorsOf := f.errorsOf
	if errorsOf == nil {
		errorsOf = func(ctx context.Context, e endpoint.Endpoint) (zfs.Damage, error) {
			return damage(ctx, f.at.Get(e.Host, &p.Settings), e.Name)
		}
	}
	d, err := errorsOf(ctx, p.good)
	n := d.More
	for _, t := range d.Objects {
		if t.Dataset == p.good.Name {
			n++
		}
	}
	switch {
	case err != nil:
		return "cannot check whether it is damaged: " + err.Error(), err
	case n > 0:
		return "it is damaged, " + english.Plural(n, "error", "") + ": its stream ends at the first unreadable block", nil
	case d.Unlisted:
		return "its pool also has errors, but does not list them: it may be damaged", nil
	}
	return "", nil
}

// covers reports whether dataset e is end, or its descendant in a recursive copy.
func (c *Copy) covers(end, e endpoint.Endpoint) bool {
	below, ok := strings.CutPrefix(e.Name, end.Name)
	return ok && end.HostName() == e.HostName() && (below == "" || c.Recursive && below[0] == '/')
}

// sameDataset reports whether two endpoints name the same dataset, regardless of the user name.
func sameDataset(a, b endpoint.Endpoint) bool {
	return a.HostName() == b.HostName() && a.Name == b.Name
}

// ends returns the source and its copy.
func (p *healPair) ends() (source, target endpoint.Endpoint) {
	if p.fromBad {
		return p.bad, p.good
	}
	return p.good, p.bad
}

// stream returns the spec of a stream from the good dataset. If from is "", it is a full stream.
func (p *healPair) stream(from, to string) zfs.SendSpec {
	if from != "" {
		from = "@" + from
	}
	return zfs.SendSpec{Dataset: p.good.Name, From: from, To: to, Flags: zfs.StreamFlags{Raw: p.raw, LargeBlocks: true, Compressed: true}}
}

func (f *copyFinder) dataset(ctx context.Context, e endpoint.Endpoint, w *transport.Settings) (*zfs.Dataset, error) {
	l, err := f.at.Get(e.Host, w).List(ctx, hosts.ListQuery{Dataset: e.Name, Versions: true, NoAncestors: true})
	if err != nil {
		return nil, err
	}
	d := l.Find(e.Name)
	if d == nil {
		return nil, fault.Refusef("", "%s does not exist", e)
	}
	return d, nil
}

// healSnapshots returns the full names of a dataset's heal snapshots before and after base, its
// most recent other snapshot.
func healSnapshots(d *zfs.Dataset) (older, newer []string, base string) {
	for _, v := range d.Snapshots() {
		if isHealSnapshot(v.Name) {
			newer = append(newer, v.In(d.Name))
			continue
		}
		older, newer, base = append(older, newer...), nil, v.In(d.Name)
	}
	return older, newer, base
}

// isReceivingHealSnapshot reports whether an interrupted receive of a heal snapshot left
// partially received state.
func isReceivingHealSnapshot(d *zfs.Dataset) bool {
	t, err := zfs.ParseToken(d.ResumeToken())
	_, name, _ := strings.Cut(t.ToName, "@")
	return err == nil && isHealSnapshot(name)
}

// isHealSnapshot reports whether name is the name of a heal snapshot.
func isHealSnapshot(name string) bool { return strings.HasPrefix(name, zfs.HealPrefix) }
