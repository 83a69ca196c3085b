// Package compare runs `zxfer compare`: it lists two trees and estimates what each would have to send.
package compare

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/outcome"
	"zxfer/pkg/plan"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// Request is a request for `zxfer compare`: two trees. B is named like the target of a Send.
type Request struct {
	A, B      endpoint.Endpoint
	Recursive bool
	Newest    bool // --newest: ignore older snapshots that only one side has
	transport.Settings
}

// The outcomes of a comparison without error.
const (
	Equal  = "equal"
	Differ = "differ"
)

// Report is the JSON report of `zxfer compare`.
type Report struct {
	Schema string `json:"schema"` // "zxfer.compare/v1"
	A      string `json:"a"`
	B      string `json:"b"`
	// Datasets are sorted by name relative to A.
	Datasets []*plan.Pair `json:"datasets"`
	// Relations counts the datasets by relation.
	Relations          map[string]int `json:"relations"`
	Differing          int            `json:"differing"`
	BytesA             uint64         `json:"bytes_a"` // that A would have to send; unknown sizes are left out
	BytesB             uint64         `json:"bytes_b"`
	Notes              []string       `json:"notes"`
	outcome.Conclusion                // equal, differ, failed, refused, interrupted
}

// Run runs `zxfer compare`. A difference is not an error. It changes nothing on either
// host.
func Run(ctx context.Context, req Request, at *hosts.Set, rep ends.Watcher) (*Report, error) {
	c := &compareJob{req: req, ends: ends.New(at, req.A, req.B, &req.Settings), rep: rep, report: &Report{
		Schema: "zxfer.compare/v1", A: req.A.String(), B: req.B.String(), Datasets: []*plan.Pair{}, Relations: map[string]int{}, Notes: []string{},
	}}
	err := ends.Unchanged(c.compare(ctx))
	success := Equal
	if c.report.Differing > 0 {
		success = Differ
	}
	c.report.Conclusion = outcome.Conclude(err, success)
	return c.report, err
}

type compareJob struct {
	ends   *ends.Ends
	req    Request
	rep    ends.Watcher
	report *Report
}

func (c *compareJob) compare(ctx context.Context) error {
	if err := ends.WithActivity(ctx, c.rep, "reaching "+c.ends.RemoteNames(), c.ends.Reach); err != nil {
		return err
	}
	a, b, err := c.list(ctx)
	if err != nil {
		return err
	}
	c.report.Datasets = plan.Compare(a, b)
	defer c.rep.Activity("estimating sizes")()
	if err := c.sizes(ctx); err != nil {
		return err
	}
	for _, p := range c.report.Datasets {
		c.report.Relations[p.Relation]++
		if p.Differs(c.req.Newest) {
			c.report.Differing++
		}
	}
	return nil
}

// list lists all versions of both sides concurrently.
func (c *compareJob) list(ctx context.Context) (a, b zfs.Listing, err error) {
	if c.req.A.Name, err = c.ends.Source.Resolve(ctx, c.req.A, c.rep.Log); err != nil {
		return a, b, err
	}
	if c.req.B.Name, err = plan.TargetName(c.req.A.Name, c.req.B.Name); err != nil {
		return a, b, err
	}
	c.report.A, c.report.B = c.req.A.String(), c.req.B.String()
	defer c.rep.Activity("listing " + c.report.A + " and " + c.report.B)()
	g, gctx := errgroup.WithContext(ctx)
	list := func(at *ends.End, dataset string, into *zfs.Listing) func() error {
		return func() (err error) {
			at.Conn.Sync(gctx, dataset)
			*into, err = at.Conn.List(gctx, hosts.ListQuery{Dataset: dataset, Recursive: c.req.Recursive, Versions: true})
			if err = ends.MissingPool(at.Conn, dataset, err); err == nil && len(into.Datasets) == 0 {
				err = ends.NoDataset(at, dataset)
			}
			into.DropSnapshots(zfs.HealPrefix)
			return err
		}
	}
	g.Go(list(&c.ends.Source, c.req.A.Name, &a))
	g.Go(list(&c.ends.Target, c.req.B.Name, &b))
	return a, b, g.Wait()
}

// sizes estimates the bytes that each side would have to send. If a key or user lacks the
// permission to send, a note replaces the size.
func (c *compareJob) sizes(ctx context.Context) error {
	r := c.report
	for _, side := range []struct {
		at   *ends.End
		of   func(*plan.Pair) *plan.PairSide
		sum  *uint64
		name string
	}{
		{&c.ends.Source, func(p *plan.Pair) *plan.PairSide { return p.A }, &r.BytesA, r.A},
		{&c.ends.Target, func(p *plan.Pair) *plan.PairSide { return p.B }, &r.BytesB, r.B},
	} {
		var specs []zfs.SendSpec
		var sides []*plan.PairSide
		for _, p := range r.Datasets {
			if s := side.of(p); s != nil {
				for _, spec := range s.Streams() {
					specs, sides = append(specs, spec), append(sides, s)
				}
			}
		}
		if len(specs) == 0 {
			continue
		}
		bytes, err := side.at.StreamSizes(ctx, specs, true)
		switch {
		case err != nil && (ctx.Err() != nil || errors.Is(err, hosts.ErrLost)):
			return err
		case err != nil:
			r.Notes = append(r.Notes, "the size to send from "+side.name+" is unknown: "+err.Error())
			continue
		}
		for i, s := range sides {
			if bytes[i] < ends.Implausible {
				s.Bytes += bytes[i]
				*side.sum += bytes[i]
			}
		}
	}
	return nil
}
