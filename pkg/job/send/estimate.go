package send

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// emptyStream is the size in bytes that ZFS estimates for an incremental stream without changes:
// its first and last record.
const emptyStream = 2 * zfs.RecordSize

// estimate asks the source for the size of every stream. With each, a stream whose snapshots
// disappeared gets an unknown size instead of failing the others.
func estimate(ctx context.Context, source *ends.End, p *plan.Plan, listing *zfs.Listing, each bool) error {
	var specs []zfs.SendSpec
	var steps []*plan.Step
	known := listing.ByName()
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
	sizes, err := source.StreamSizes(ctx, specs, each)
	if err != nil {
		return fmt.Errorf("estimate: %w", err)
	}
	for i, st := range steps {
		// ZFS may return a difference that went below zero (openzfs#16691). Such a size is
		// unknown.
		if st.Bytes += sizes[i]; st.Bytes > ends.Implausible || sizes[i] == 0 {
			st.Bytes = 0
		}
	}
	return nil
}

// estimateSpec returns the stream to estimate for a step, nil if no query is needed. If the step
// ends at a simulated snapshot, it sets st.Bytes to the bytes written since the most recent real
// snapshot, and the returned stream ends there. The dataset counts each block as often as its
// property copies says, a stream contains it once.
func estimateSpec(st *plan.Step, d *zfs.Dataset) *zfs.SendSpec {
	snapshots := d.Snapshots()
	if n := len(snapshots); n == 0 || !snapshots[n-1].Simulated || snapshots[n-1].GUID != st.ToGUID {
		return &st.Send
	}
	snapshots = snapshots[:len(snapshots)-1]
	if !st.Send.Flags.Raw && !st.Send.Flags.Compressed {
		return nil // ZFS does not report uncompressed sizes
	}
	bytes := func(property string) uint64 {
		n, err := strconv.ParseUint(d.Get(property), 10, 64)
		if err != nil {
			return 0 // unknown
		}
		copies, err := strconv.ParseUint(d.Get("copies"), 10, 64)
		if err != nil || copies < 1 || copies > 3 {
			copies = 1
		}
		return max(n/copies, emptyStream)
	}
	if st.Send.From == "" {
		st.Bytes = bytes("referenced")
		return nil
	}
	st.Bytes = bytes("written")
	if len(snapshots) == 0 || snapshots[len(snapshots)-1].GUID == st.BaseGUID || st.Bytes == 0 {
		return nil
	}
	spec := st.Send
	spec.To = snapshots[len(snapshots)-1].Name
	spec.Through = slices.DeleteFunc(slices.Clone(spec.Through), func(name string) bool { return name == spec.To })
	return &spec
}

// warm starts the local libzfs_core, which takes a while, in the background. A single dataset
// does not need it. The estimate reports any error. done cancels and waits.
func warm(ctx context.Context, e *ends.Ends, req *Request) (done func()) {
	if !req.Plan.Recursive || !e.Source.Conn.Local() {
		return func() {}
	}
	_, done = async(ctx, func(ctx context.Context) ([]uint64, error) { return hosts.Estimate(ctx, e.Source.Conn, nil) })
	return done
}
