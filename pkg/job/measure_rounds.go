package job

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/probe"
)

// measurement measures one part. A link measurement stores its own ceilings and returns nil.
type measurement struct {
	title string // for messages
	run   func(context.Context) (*probe.Ceiling, error)
}

func (m *measurer) hostMeasurement(e *end, r probe.Request) measurement {
	return measurement{probe.Title(r.ID) + " on " + e.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return m.measureHost(ctx, e, r) }}
}

// skippedMeasurement returns a measurement that is only reported as skipped.
func (m *measurer) skippedMeasurement(e *end, id, why string) measurement {
	return measurement{probe.Title(id) + " on " + e.Label(),
		func(context.Context) (*probe.Ceiling, error) { return e.skipped(id, why), nil }}
}

func (m *measurer) linkMeasurement(id string, from, to *end) measurement {
	return measurement{"the link from " + from.Label() + " to " + to.Label(),
		func(ctx context.Context) (*probe.Ceiling, error) { return nil, m.measureLink(ctx, id, from, to) }}
}

func (m *measurer) run(ctx context.Context, all rounds) error {
	for i, round := range all {
		title := fmt.Sprintf("measuring %d of %d: %s", i+1, len(all), round[0].title)
		for _, other := range round[1:] {
			title += ", " + other.title
		}
		done := m.activity(title)
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

// rounds holds measurements in order. Those of one round run concurrently.
type rounds [][]measurement

// addPair adds a measurement of each end. They run concurrently only on separate machines,
// because otherwise they would disturb each other.
func (m *measurer) addPair(r *rounds, source, target measurement) {
	if same, known := m.sameMachine(); known && !same {
		*r = append(*r, []measurement{source, target})
		return
	}
	r.add(source, target)
}

// add adds measurements as separate rounds.
func (r *rounds) add(all ...measurement) {
	for _, one := range all {
		*r = append(*r, []measurement{one})
	}
}
