package job

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// comparison has both sides produce streams once more and compares the digests of
// what they hold. It reads what is stored on the target, so it finds what no check
// of the way there can.
type comparison struct {
	*ends
	state *plan.State // before the transfer
	rep   Reporter
}

// all compares every stream of a plan, and notes that in results.
func (c *comparison) all(ctx context.Context, p *plan.Plan, there *zfs.Listing, results []*StepResult) error {
	arrived := there.ByName()
	for _, d := range p.Datasets {
		for _, step := range d.Steps {
			sum, err := c.step(ctx, d, step, arrived[d.Target])
			if err != nil {
				return err
			}
			for _, r := range results {
				if r.Source == d.Source && r.Snapshot == "@"+step.Send.To && r.Error == "" {
					r.Verified, r.Digest = "guid and content", sum
				}
			}
		}
	}
	return nil
}

// step compares one stream, and returns its digest.
func (c *comparison) step(ctx context.Context, d *plan.Dataset, step plan.Step, there *zfs.Dataset) (string, error) {
	twin, err := targetSpec(step, d, there)
	if err != nil {
		return "", err
	}
	again := step.Send
	again.Token = ""
	both := pair{source: again, target: twin}
	defer c.rep.Activity(fmt.Sprintf("comparing the contents of %s@%s on both sides", d.Target, twin.To))()
	a, b, err := c.digests(ctx, both, zfs.Within{})
	if err == nil && a.Sum != b.Sum {
		err = c.differ(ctx, d, both, a, b, there)
	}
	if err != nil {
		return "", fmt.Errorf("verify %s: %w", d.Target, err)
	}
	c.rep.Log(fmt.Sprintf("%s@%s: contents are equal on both sides (%s)", d.Target, twin.To, a.Sum))
	return a.Sum, nil
}

// pair is one stream as each side produces it.
type pair struct{ source, target zfs.SendSpec }

// full is the stream of all that its snapshot holds.
func (p pair) full() pair {
	p.source.From, p.source.Through = "", nil
	p.target.From, p.target.Through = "", nil
	return p
}

// digests asks both sides.
func (c *comparison) digests(ctx context.Context, p pair, within zfs.Within) (source, target hosts.Digest, err error) {
	g, ctx := errgroup.WithContext(ctx)
	ask := func(e *end, of zfs.SendSpec, into *hosts.Digest) func() error {
		return func() error {
			return e.Do(ctx, hosts.WithRole(func(st hosts.Digester) (err error) {
				*into, err = st.Digest(ctx, hosts.ContentQuery{SendSpec: of, Within: within}, nil)
				return err
			}))
		}
	}
	g.Go(ask(&c.source, p.source, &source))
	g.Go(ask(&c.target, p.target, &target))
	return source, target, g.Wait()
}

// differ looks into two streams of different digests, a and b. Those of
// increments may differ where the snapshots do not, by what a side had to write
// again: what counts is what each snapshot holds. The first that differs is the
// error, with where in it.
func (c *comparison) differ(ctx context.Context, d *plan.Dataset, p pair, a, b hosts.Digest, target *zfs.Dataset) error {
	for _, hop := range c.hops(d, p, target) {
		var err error
		if len(p.source.Through) > 0 {
			if a, b, err = c.digests(ctx, hop, zfs.Within{}); err != nil {
				return err
			}
			if a.Sum == b.Sum {
				continue
			}
		}
		full := hop.full()
		if hop.source.From != "" {
			c.rep.Log(fmt.Sprintf("%s@%s: what is new in it was not written in one way on both sides: comparing all that it holds", d.Target, hop.target.To))
			if a, b, err = c.digests(ctx, full, zfs.Within{}); err != nil {
				return err
			}
		}
		if a.Sum != b.Sum {
			return c.locate(ctx, d, full, a, b)
		}
	}
	return nil
}

// hops are the streams from snapshot to snapshot that a range is made of.
func (c *comparison) hops(d *plan.Dataset, p pair, target *zfs.Dataset) []pair {
	if len(p.source.Through) == 0 {
		return []pair{p}
	}
	var out []pair
	source := c.state.Source.Find(d.Source)
	for _, name := range append(slices.Clone(p.source.Through), p.source.To) {
		hop := p
		hop.source.Through, hop.target.Through = nil, nil
		hop.source.To = name
		hop.target.To = targetsName(source, target, name)
		if len(out) > 0 {
			before := out[len(out)-1]
			hop.source.From, hop.target.From = "@"+before.source.To, "@"+before.target.To
		}
		out = append(out, hop)
	}
	return out
}

// targetsName is the target's name of a snapshot of the source's: it may have
// been renamed there.
func targetsName(source, target *zfs.Dataset, name string) string {
	if source != nil {
		for _, v := range source.Snapshots() {
			if v.Name != name {
				continue
			}
			if there, ok := target.SnapshotOf(v.GUID); ok {
				return there.Name
			}
		}
	}
	return name
}

// maxNarrowing bounds how often both sides are read to find the first object
// that differs: each time narrows it down by zfs.MaxParts.
const maxNarrowing = 4

// locate is the error of two snapshots that differ.
func (c *comparison) locate(ctx context.Context, d *plan.Dataset, p pair, a, b hosts.Digest) error {
	from, to, err := zfs.FirstDifference(a, b)
	for i := 0; err == nil && to-from > 1 && i < maxNarrowing; i++ {
		if a, b, err = c.digests(ctx, p, zfs.Within{From: from, To: to}); err != nil {
			return err
		}
		from, to, err = zfs.FirstDifference(a, b)
	}
	where, hint := "", ""
	switch {
	case err != nil:
		where = err.Error()
	case from == 0:
		where = "they are not one snapshot"
	case to-from > 1:
		where = fmt.Sprintf("the first difference is in one of the objects %d to %d", from, to-1)
	default:
		if where, err = c.locateIn(ctx, p, from); err != nil {
			return err
		}
		hint = c.findObject(d, p, from)
	}
	return fault.Failf(hint+"run zpool scrub on both pools, then compare again",
		"%s: the contents of %s@%s differ from %s@%s: %s",
		c.target.Label(), d.Target, p.target.To, d.Source, p.source.To, where)
}

// locateIn says where one object differs.
func (c *comparison) locateIn(ctx context.Context, p pair, object uint64) (string, error) {
	name := fmt.Sprintf("object %d is the first that differs", object)
	a, b, err := c.digests(ctx, p, zfs.Within{Object: object})
	if err != nil {
		return "", err
	}
	from, to, err := zfs.FirstDifference(a, b)
	switch {
	case err != nil:
		return name, nil //nolint:nilerr // it is there on one side alone, in another form
	case to == 1:
		return name + ", in its attributes", nil
	}
	return fmt.Sprintf("%s, between its bytes %d and %d", name, zfs.Offset(from), zfs.Offset(to)), nil
}

// findObject is a hint that leads from an object to a file, where a filesystem
// is mounted.
func (c *comparison) findObject(d *plan.Dataset, p pair, object uint64) string {
	for _, side := range []struct {
		end     *end
		listing *zfs.Listing
		of      zfs.SendSpec
	}{{&c.source, &c.state.Source, p.source}, {&c.target, &c.state.Target, p.target}} {
		t := side.listing.Find(side.of.Dataset)
		if d.Type != zfs.Filesystem || t == nil || t.Get("mounted") != "yes" || !filepath.IsAbs(t.Get("mountpoint")) {
			continue
		}
		dir := filepath.Join(t.Get("mountpoint"), ".zfs/snapshot", side.of.To)
		return fmt.Sprintf("which file it is, on %s: %s\n", side.end.Label(),
			zfs.CommandLine([]string{"find", dir, "-xdev", "-inum", fmt.Sprint(object)}))
	}
	return ""
}

// targetSpec is the stream of a step as the target would produce it.
func targetSpec(step plan.Step, d *plan.Dataset, target *zfs.Dataset) (zfs.SendSpec, error) {
	twin := zfs.SendSpec{Dataset: d.Target, Through: step.Send.Through, Flags: step.Send.Flags}
	to, ok := target.SnapshotOf(step.ToGUID)
	if !ok {
		return twin, fault.Failf("", "%s has no snapshot with the GUID %d of %s@%s", d.Target, step.ToGUID, d.Source, step.Send.To)
	}
	twin.To = to.Name
	switch {
	case step.Receive.Origin != "":
		twin.From = step.Receive.Origin
	case step.BaseGUID != 0:
		base, ok := target.SnapshotOf(step.BaseGUID)
		if !ok {
			return twin, fault.Failf("", "%s has no snapshot with the GUID %d, the base of %s@%s", d.Target, step.BaseGUID, d.Source, step.Send.To)
		}
		twin.From = base.Short()
	}
	return twin, nil
}
