package job

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/probe"
)

// measurement is of one part. What it measures of a link it keeps by itself.
type measurement struct {
	what string // as a person is told
	run  func(context.Context) (*probe.Ceiling, error)
}

// of measures a host.
func (m *measurer) of(e *end, r probe.Request) measurement {
	return measurement{probe.Title(r.ID) + " on " + e.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return m.one(ctx, e, r) }}
}

// skips is a measurement that is not made.
func (m *measurer) skips(e *end, id, why string) measurement {
	return measurement{probe.Title(id) + " on " + e.Label(),
		func(context.Context) (*probe.Ceiling, error) { return e.skipped(id, why), nil }}
}

// crosses measures the link in one direction.
func (m *measurer) crosses(id string, from, to *end) measurement {
	return measurement{"the link from " + from.Label() + " to " + to.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return nil, m.crossing(ctx, id, from, to) }}
}

// rounds are measurements in their order, those of one round at once.
type rounds [][]measurement

// add adds measurements one after the other.
func (r *rounds) add(all ...measurement) {
	for _, one := range all {
		*r = append(*r, []measurement{one})
	}
}

// both adds one of the source and one of the target: at once where these are two
// machines, as two on one would measure each other.
func (m *measurer) both(r *rounds, source, target measurement) {
	if m.apart() {
		*r = append(*r, []measurement{source, target})
		return
	}
	r.add(source, target)
}

// apart tells that the ends are two machines for sure: two kernels run there.
// Containers of one machine have names and addresses of their own, and one kernel.
func (e *ends) apart() bool {
	a, b := e.source.facts.Boot, e.target.facts.Boot
	return a != "" && b != "" && a != b
}

// run makes measurements, round by round.
func (m *measurer) run(ctx context.Context, all rounds) error {
	for i, round := range all {
		what := fmt.Sprintf("measuring %d of %d: %s", i+1, len(all), round[0].what)
		for _, other := range round[1:] {
			what += ", " + other.what
		}
		done := m.doing(what)
		found := make([]*probe.Ceiling, len(round))
		g, gctx := errgroup.WithContext(ctx)
		for i, one := range round {
			g.Go(func() (err error) { found[i], err = one.run(gctx); return err })
		}
		err := g.Wait()
		done()
		for _, c := range found {
			if c != nil {
				m.ceilings = append(m.ceilings, *c)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
