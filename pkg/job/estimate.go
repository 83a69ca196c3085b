package job

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// implausible is more than any stream has: 2^60 bytes.
const implausible = 1 << 60

// estimate asks the source for the size of every stream. With each, one whose
// snapshots are gone by now stays unknown, and does not keep the others.
func estimate(ctx context.Context, source *end, p *plan.Plan, each bool) error {
	var specs []zfs.SendSpec
	var steps []*plan.Step
	for _, st := range p.Streams() {
		specs = append(specs, st.Send)
		steps = append(steps, st)
	}
	if len(specs) == 0 {
		return nil
	}
	sizes, err := streamSizes(ctx, source, specs, each)
	if err != nil {
		return fmt.Errorf("estimate: %w", err)
	}
	for i, st := range steps {
		// ZFS may answer with a difference that went below zero
		// (openzfs#16691): such a size is unknown.
		if st.Bytes = sizes[i]; st.Bytes > implausible {
			st.Bytes = 0
		}
	}
	return nil
}

// streamSizes finds what cannot be estimated by halves.
func streamSizes(ctx context.Context, source *end, specs []zfs.SendSpec, each bool) (sizes []uint64, err error) {
	err = source.Do(ctx, func(st site.Site) (err error) {
		sizes, err = st.Estimate(ctx, specs)
		return err
	})
	if err == nil || !each || !vanished(err) {
		return sizes, err
	}
	if len(specs) == 1 {
		return []uint64{0}, nil // its stream will say why
	}
	half := len(specs) / 2
	a, err := streamSizes(ctx, source, specs[:half], each)
	if err != nil {
		return nil, err
	}
	b, err := streamSizes(ctx, source, specs[half:], each)
	return append(a, b...), err
}

// vanished tells whether a failure may be that a dataset, a snapshot or a base
// was destroyed or renamed since the survey.
func vanished(err error) bool {
	for _, kind := range []zfs.Kind{zfs.NotFound, zfs.NoBase, zfs.BadToken} {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return false
}
