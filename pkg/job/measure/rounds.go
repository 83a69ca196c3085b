package measure

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/hosts"
	"zxfer/pkg/probe"
)

// Measurement measures one part. A link measurement stores its own ceilings and returns nil.
type Measurement struct {
	title string // for messages
	run   func(context.Context) (*probe.Ceiling, error)
}

// Run runs the measurements in order and stores the ceilings.
func (m *Measurer) Run(ctx context.Context, all Rounds) error {
	for i, round := range all {
		title := fmt.Sprintf("measuring %d of %d: %s", i+1, len(all), round[0].title)
		for _, other := range round[1:] {
			title += ", " + other.title
		}
		done := m.Activity(title)
		found := make([]*probe.Ceiling, len(round))
		g, gctx := errgroup.WithContext(ctx)
		for i, one := range round {
			g.Go(func() (err error) { found[i], err = one.run(gctx); return err })
		}
		err := g.Wait()
		done()
		for _, c := range found {
			if c != nil {
				m.Ceilings = append(m.Ceilings, *c)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Rounds holds measurements in order. Those of one round run concurrently.
type Rounds [][]Measurement

// AddPair adds a measurement of each end. They run concurrently only on separate machines,
// because otherwise they would disturb each other.
func (m *Measurer) AddPair(r *Rounds, source, target Measurement) {
	if same, known := hosts.SameKernel(m.Source.Facts, m.Target.Facts); known && !same {
		*r = append(*r, []Measurement{source, target})
		return
	}
	r.Add(source, target)
}

// Add adds measurements as separate rounds.
func (r *Rounds) Add(all ...Measurement) {
	for _, one := range all {
		*r = append(*r, []Measurement{one})
	}
}
