package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"zxfer/pkg/hosts"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// implausible is more than any stream has: 2^60 bytes.
const implausible = 1 << 60

// emptyStream is what ZFS foretells of an increment without changes, in bytes: its
// first and last record.
const emptyStream = 2 * zfs.RecordSize

// estimate asks the source for the size of every stream. With each, one whose
// snapshots are gone by now stays unknown, and does not keep the others.
func estimate(ctx context.Context, source *end, p *plan.Plan, there *zfs.Listing, each bool) error {
	var specs []zfs.SendSpec
	var steps []*plan.Step
	known := there.ByName()
	for d, st := range p.Streams() {
		spec := &st.Send
		if s := known[d.Source]; s != nil {
			spec = estimateSpec(st, s)
		}
		if spec != nil {
			specs = append(specs, *spec)
			steps = append(steps, st)
		}
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
		if st.Bytes += sizes[i]; st.Bytes > implausible || sizes[i] == 0 {
			st.Bytes = 0
		}
	}
	return nil
}

// estimateSpec returns the stream to ask for the size of a step, nil for none. One that
// ends at a snapshot which is yet to be taken is as long as one to the newest there
// is, and what was written since, which is set.
func estimateSpec(st *plan.Step, d *zfs.Dataset) *zfs.SendSpec {
	there := d.Snapshots()
	if n := len(there); n == 0 || !there[n-1].Pretended || there[n-1].GUID != st.ToGUID {
		return &st.Send
	}
	there = there[:len(there)-1]
	if !st.Send.Flags.Raw && !st.Send.Flags.Compressed {
		return nil // how long blocks are unpacked nothing tells
	}
	bytes := func(property string) uint64 {
		n, err := strconv.ParseUint(d.Get(property), 10, 64)
		if err != nil {
			return 0 // then it is unknown
		}
		return max(n, emptyStream)
	}
	if st.Send.From == "" {
		st.Bytes = bytes("referenced")
		return nil
	}
	st.Bytes = bytes("written")
	if len(there) == 0 || there[len(there)-1].GUID == st.BaseGUID || st.Bytes == 0 {
		return nil
	}
	spec := st.Send
	spec.To = there[len(there)-1].Name
	spec.Through = slices.DeleteFunc(slices.Clone(spec.Through), func(name string) bool { return name == spec.To })
	return &spec
}

// streamSizes finds what cannot be estimated by halves.
func streamSizes(ctx context.Context, source *end, specs []zfs.SendSpec, each bool) ([]uint64, error) {
	sizes, err := hosts.Call(ctx, source.Do, hosts.Lister.Estimate, specs)
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
