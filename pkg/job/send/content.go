package send

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// contentComparison makes both sides produce the sent streams again and compares the digests of
// their contents. It reads stored data on the target, so it finds damage that transport checks
// cannot see.
type contentComparison struct {
	ends  *ends.Ends
	state *plan.State // before the transfer
	rep   Reporter
}

// compareAll compares every stream of a plan and records the digests in results.
func (c *contentComparison) compareAll(ctx context.Context, p *plan.Plan, target *zfs.Listing, results []*StepResult) error {
	arrived := target.ByName()
	for _, d := range p.Datasets {
		for _, step := range d.Steps {
			sum, err := c.compareStep(ctx, d, step, arrived[d.Target])
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

func (c *contentComparison) compareStep(ctx context.Context, d *plan.Dataset, step plan.Step, target *zfs.Dataset) (string, error) {
	spec, err := targetSpec(step, d, target)
	if err != nil {
		return "", err
	}
	again := step.Send
	again.Token = ""
	both := streamPair{source: again, target: spec}
	defer c.rep.Activity(fmt.Sprintf("comparing the contents of %s@%s on both sides", d.Target, spec.To))()
	a, b, err := c.digests(ctx, both, zfs.DigestRange{})
	if err == nil && !a.SameContents(b) {
		err = c.findDifference(ctx, d, both, a, b, target)
	}
	if err != nil {
		return "", fmt.Errorf("verify %s: %w", d.Target, err)
	}
	what := "contents are equal on both sides"
	if spec.From != "" {
		what = "changes since " + spec.From + " are equal on both sides"
	}
	c.rep.Log(fmt.Sprintf("%s@%s: %s (%s)", d.Target, spec.To, what, a.Sum))
	if a.BlockSizes != b.BlockSizes {
		c.rep.Log(fmt.Sprintf("%s@%s: %s", d.Target, spec.To, zfs.OtherBlockSizes))
	}
	return a.Sum, nil
}

// targetSpec returns the stream of a step as the target would produce it.
func targetSpec(step plan.Step, d *plan.Dataset, target *zfs.Dataset) (zfs.SendSpec, error) {
	spec := zfs.SendSpec{Dataset: d.Target, Through: step.Send.Through, Flags: step.Send.Flags}
	to, ok := target.SnapshotOf(step.ToGUID)
	if !ok {
		return spec, fault.Failf("", "%s has no snapshot with the GUID %d of %s@%s", d.Target, step.ToGUID, d.Source, step.Send.To)
	}
	spec.To = to.Name
	switch {
	case step.Receive.Origin != "":
		spec.From = step.Receive.Origin
	case step.BaseGUID != 0:
		base, ok := target.SnapshotOf(step.BaseGUID)
		if !ok {
			return spec, fault.Failf("", "%s has no snapshot with the GUID %d, the incremental source of %s@%s", d.Target, step.BaseGUID, d.Source, step.Send.To)
		}
		spec.From = base.Short()
	}
	return spec, nil
}

// findDifference examines streams whose digests a and b differ. Incremental streams may differ
// although the snapshots are equal, because a side rewrote some blocks. Therefore the full
// contents decide. The error locates the first difference; nil means that the contents are equal.
func (c *contentComparison) findDifference(ctx context.Context, d *plan.Dataset, p streamPair, a, b hosts.Digest, target *zfs.Dataset) error {
	for _, hop := range c.hops(d, p, target) {
		var err error
		if len(p.source.Through) > 0 {
			if a, b, err = c.digests(ctx, hop, zfs.DigestRange{}); err != nil {
				return err
			}
			if a.SameContents(b) {
				continue
			}
		}
		full := hop.full()
		if hop.source.From != "" {
			c.rep.Log(fmt.Sprintf("%s@%s: the two sides wrote its new data differently: comparing all of its data", d.Target, hop.target.To))
			if a, b, err = c.digests(ctx, full, zfs.DigestRange{}); err != nil {
				return err
			}
		}
		if !a.SameContents(b) {
			return c.locate(ctx, d, full, a, b)
		}
	}
	return nil
}

// hops splits a range into one stream per snapshot.
func (c *contentComparison) hops(d *plan.Dataset, p streamPair, target *zfs.Dataset) []streamPair {
	if len(p.source.Through) == 0 {
		return []streamPair{p}
	}
	var out []streamPair
	source := c.state.Source.Find(d.Source)
	for _, name := range append(slices.Clone(p.source.Through), p.source.To) {
		hop := p
		hop.source.Through, hop.target.Through = nil, nil
		hop.source.To = name
		hop.target.To = targetSnapshotName(source, target, name)
		if len(out) > 0 {
			before := out[len(out)-1]
			hop.source.From, hop.target.From = "@"+before.source.To, "@"+before.target.To
		}
		out = append(out, hop)
	}
	return out
}

// targetSnapshotName returns the target's name of a source snapshot, which may have been renamed.
func targetSnapshotName(source, target *zfs.Dataset, name string) string {
	if source != nil {
		for _, v := range source.Snapshots() {
			if v.Name != name {
				continue
			}
			if renamed, ok := target.SnapshotOf(v.GUID); ok {
				return renamed.Name
			}
		}
	}
	return name
}

// maxNarrowing limits the reads of both sides to locate the first object that differs. Each read
// narrows the range by a factor of zfs.MaxParts.
const maxNarrowing = 4

// locate returns an error that names the first difference between two snapshots.
func (c *contentComparison) locate(ctx context.Context, d *plan.Dataset, p streamPair, a, b hosts.Digest) error {
	from, to, err := zfs.FirstDifference(a, b)
	for i := 0; err == nil && to-from > 1 && i < maxNarrowing; i++ {
		if a, b, err = c.digests(ctx, p, zfs.DigestRange{From: from, To: to}); err != nil {
			return err
		}
		from, to, err = zfs.FirstDifference(a, b)
	}
	where, hint := "", ""
	switch {
	case err != nil:
		where = err.Error()
	case from == 0:
		where = "they are different snapshots"
	case to-from > 1:
		where = fmt.Sprintf("the first difference is in one of the objects %d to %d", from, to-1)
	default:
		if where, err = c.locateInObject(ctx, p, from); err != nil {
			return err
		}
		hint = c.objectHint(d, p, from)
	}
	return fault.Failf(hint+"compare both sides before you overwrite one: the digests do not show which one is right",
		"%s: the contents of %s@%s differ from %s@%s: %s",
		c.ends.Target.Conn.Label(), d.Target, p.target.To, d.Source, p.source.To, where)
}

// locateInObject describes the first difference inside an object.
func (c *contentComparison) locateInObject(ctx context.Context, p streamPair, object uint64) (string, error) {
	name := fmt.Sprintf("object %d is the first that differs", object)
	a, b, err := c.digests(ctx, p, zfs.DigestRange{Object: object})
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

// objectHint returns a command that finds the file of an object, or "" if no side has the
// filesystem mounted.
func (c *contentComparison) objectHint(d *plan.Dataset, p streamPair, object uint64) string {
	for _, side := range []struct {
		end     *ends.End
		listing *zfs.Listing
		of      zfs.SendSpec
	}{{&c.ends.Source, &c.state.Source, p.source}, {&c.ends.Target, &c.state.Target, p.target}} {
		t := side.listing.Find(side.of.Dataset)
		if d.Type != zfs.Filesystem || t == nil || t.Get("mounted") != "yes" || !filepath.IsAbs(t.Get("mountpoint")) {
			continue
		}
		dir := filepath.Join(t.Get("mountpoint"), ".zfs/snapshot", side.of.To)
		return fmt.Sprintf("to find the file on %s: %s\n", side.end.Conn.Label(),
			side.end.Conn.Command("find", dir, "-xdev", "-inum", fmt.Sprint(object)))
	}
	return ""
}

// digests computes the digests on both sides concurrently.
func (c *contentComparison) digests(ctx context.Context, p streamPair, within zfs.DigestRange) (source, target hosts.Digest, err error) {
	g, ctx := errgroup.WithContext(ctx)
	ask := func(e *ends.End, of zfs.SendSpec, into *hosts.Digest) func() error {
		return func() (err error) {
			*into, err = hosts.Call(ctx, e.Conn, hosts.OpDigest, hosts.ContentQuery{SendSpec: of, Within: within})
			return err
		}
	}
	g.Go(ask(&c.ends.Source, p.source, &source))
	g.Go(ask(&c.ends.Target, p.target, &target))
	return source, target, g.Wait()
}

// streamPair holds the spec of one stream on each side.
type streamPair struct{ source, target zfs.SendSpec }

// full returns the full streams of the same snapshots.
func (p streamPair) full() streamPair {
	p.source.From, p.source.Through = "", nil
	p.target.From, p.target.Through = "", nil
	return p
}
