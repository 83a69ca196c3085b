package site

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"zxfer/pkg/device"
	"zxfer/pkg/finding"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

// DeviceTask is what a Task copies where it is a device. Both ends are given
// the same; Read and Write say which part is whose.
type DeviceTask struct {
	Source device.Facts `json:"source"` // as planned: what is opened must still be that
	Target device.Facts `json:"target"`
	Read   bool         `json:"read,omitempty"`  // this end reads the source
	Write  bool         `json:"write,omitempty"` // this end writes the target

	Allow      device.Allow `json:"allow"`                 // what the user consented to
	Sparse     bool         `json:"sparse,omitempty"`      // a new image file keeps its holes
	SkipErrors bool         `json:"skip_errors,omitempty"` // unreadable parts are passed over as zeros
	// LVMSnapshot, where set, is the room of a snapshot of the source, which
	// is taken, copied instead of it and removed.
	LVMSnapshot string `json:"lvm_snapshot,omitempty"`
	NoResume    bool   `json:"no_resume,omitempty"` // a journal is not used, but begun anew

	Options transfer.DeviceOptions `json:"options"`
}

// DeviceState is what an earlier copy left on the target's host.
type DeviceState struct {
	// Begun tells that the target's contents are those of an interrupted copy
	// of the same source: to overwrite them needs no consent.
	Begun bool `json:"begun,omitempty"`
	// Stored is the bytes that a journal vouches for.
	Stored int64 `json:"stored"`
	// Unusable tells why a journal that is there cannot be used.
	Unusable string `json:"unusable,omitempty"`
}

// DigestQuery asks for the digest of a device.
type DigestQuery struct {
	Device device.Facts `json:"device"`
	// Size, where it is not 0, is how many of the device's first bytes count.
	Size    int64                  `json:"size,omitempty"`
	Options transfer.DeviceOptions `json:"options"`
}

// DeviceDigest is a device's digest.
type DeviceDigest struct {
	Result transfer.Result `json:"result"`
	// Parts are hashes of consecutive ranges of PartBytes each, at most
	// maxParts: they tell where two devices differ.
	Parts     [][]byte `json:"parts"`
	PartBytes int64    `json:"part_bytes"`
}

// maxParts bounds the answer to a DigestQuery.
const maxParts = 4096

// parts says how a device that was hashed in blocks is cut.
func parts(size int64, block int) (count int, bytes int64) {
	blocks := (size + int64(block) - 1) / int64(block)
	per := max(1, (blocks+maxParts-1)/maxParts)
	return int((blocks + per - 1) / per), per * int64(block)
}

// InspectDevice looks at a device or image file; one that is not there yet,
// in a directory that is, is of kind missing.
func (l *Local) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return device.Inspect(ctx, path)
}

// DeviceState looks for the journal of an earlier copy, and whether the target
// still holds what that stored.
func (l *Local) DeviceState(_ context.Context, t DeviceTask) (s DeviceState, err error) {
	if err := t.Options.Fits(t.Source.Size); err != nil {
		return s, fmt.Errorf("%s: %w", t.Source.Path, err)
	}
	j, reason, err := device.OpenJournal(t.Source, t.Target, t.Options.Cut(), false)
	if err != nil {
		return s, fmt.Errorf("journal of %s: %w", t.Target.Path, err)
	}
	if j == nil {
		return s, nil
	}
	defer j.Close()
	if reason != "" {
		return DeviceState{Unusable: reason}, nil
	}
	usable, wrote, err := j.Check(t.Target)
	if err != nil {
		return s, fmt.Errorf("%s, compared with the journal of its copy: %w", t.Target.Path, err)
	}
	if j.Blocks() > 0 && !usable {
		return DeviceState{Unusable: "somebody else has put the target to use since"}, nil
	}
	return DeviceState{Begun: wrote, Stored: min(int64(j.Blocks())*int64(t.Options.Block), t.Source.Size)}, nil
}

// DigestDevice hashes a device.
func (l *Local) DigestDevice(ctx context.Context, q DigestQuery, progress func(transfer.Progress)) (d DeviceDigest, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if err := q.Options.Fits(q.Device.Size); err != nil {
		return d, fmt.Errorf("%s: %w", q.Device.Path, err)
	}
	src, err := openSource(ctx, DeviceTask{Source: q.Device})
	if err != nil {
		return d, err
	}
	if q.Size > 0 && q.Size < src.Size() {
		src = &head{src, q.Size}
	}
	var sums []transfer.BlockSum
	if d.Result, sums, err = transfer.DigestDevice(ctx, src, q.Options, progress); err != nil {
		return d, err
	}
	_, d.PartBytes = parts(d.Result.Device.Size, d.Result.Device.Block)
	for part := range slices.Chunk(sums, max(1, int(d.PartBytes)/d.Result.Device.Block)) {
		fold := transfer.FoldSums(part)
		d.Parts = append(d.Parts, fold[:])
	}
	return d, nil
}

// transferDevice moves a device, over link unless that is nil.
func (l *Local) transferDevice(ctx context.Context, t DeviceTask, link *wire.Link, progress func(transfer.Progress)) (transfer.Result, error) {
	fail := func(err error) (transfer.Result, error) {
		if link != nil {
			link.Abort(err)
		}
		return transfer.Result{}, err
	}
	if err := t.Options.Fits(t.Source.Size); err != nil {
		return fail(fmt.Errorf("%s: %w", t.Source.Path, err))
	}
	switch {
	case !t.Read && !t.Write, (link == nil) != (t.Read && t.Write):
		return fail(errors.New("a device is read or written over a link, or both without one"))
	case t.streamed():
		return l.transferStream(ctx, t, link, progress)
	case t.Read && t.Write:
		src, err := openSource(ctx, t)
		if err != nil {
			return fail(err)
		}
		dst, j, err := l.openTarget(ctx, t)
		if err != nil {
			return fail(errors.Join(err, src.Close()))
		}
		return transfer.CopyDevice(ctx, src, dst, j, t.Options, progress)
	case t.Read:
		src, err := openSource(ctx, t)
		if err != nil {
			return fail(err)
		}
		return transfer.SendDevice(ctx, src, link, t.Options, progress)
	}
	dst, j, err := l.openTarget(ctx, t)
	if err != nil {
		return fail(err)
	}
	return transfer.ReceiveDevice(ctx, link, dst, j, t.Source.Size, t.Options, progress)
}

// openTarget opens the target and its journal. The safety rules are checked
// once more: time has passed since the plan.
func (l *Local) openTarget(ctx context.Context, t DeviceTask) (transfer.BlockTarget, transfer.BlockJournal, error) {
	now, err := device.Inspect(ctx, t.Target.Path)
	if err != nil {
		return nil, nil, err
	}
	state, err := l.DeviceState(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	if err := refusals(t, now, state); err != nil {
		return nil, nil, err
	}
	dst, err := device.OpenTarget(ctx, t.Target, t.Source.Size, device.Options{Sparse: t.Sparse})
	if err != nil {
		return nil, nil, err
	}
	j, err := openJournal(t, t.NoResume || state.Stored == 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("journal of %s: %w", t.Target.Path, err), dst.Discard())
	}
	return &blockTarget{dst, t.Target.Path}, &blockJournal{j}, nil
}

// openJournal opens the journal of a copy, or begins it.
func openJournal(t DeviceTask, fresh bool) (*device.Journal, error) {
	if fresh {
		old, _, err := device.OpenJournal(t.Source, t.Target, t.Options.Cut(), false)
		if err != nil {
			return nil, err
		}
		if old != nil {
			if err := old.Remove(); err != nil {
				return nil, err
			}
		}
	}
	j, _, err := device.OpenJournal(t.Source, t.Target, t.Options.Cut(), true)
	return j, err
}

// DeviceProblems are what speaks against the copy, with the target as it is
// now. Of a target that an interrupted copy of this very source has begun, its
// contents do not count: they are that copy's.
func DeviceProblems(t DeviceTask, now device.Facts, state DeviceState) []finding.Finding {
	return slices.DeleteFunc(device.CheckTarget(t.Source, now, t.Allow), func(f finding.Finding) bool { return f.Consent && state.Begun })
}

func openSource(ctx context.Context, t DeviceTask) (transfer.BlockSource, error) {
	s := &blockSource{name: t.Source.Path, intact: func() error { return nil }, done: func() error { return nil }}
	facts := t.Source
	if t.LVMSnapshot != "" {
		snapshot, err := device.SnapshotLV(ctx, t.Source, t.LVMSnapshot)
		if err != nil {
			return nil, err
		}
		s.intact = func() error { return snapshot.Intact(ctx) }
		s.done = func() error { return snapshot.Remove(context.WithoutCancel(ctx)) }
		if facts, err = device.Inspect(ctx, snapshot.Path); err != nil {
			return nil, errors.Join(err, s.done())
		}
	}
	var err error
	if s.Source, err = device.OpenSource(ctx, facts, device.Options{SkipErrors: t.SkipErrors}); err != nil {
		return nil, errors.Join(err, s.done())
	}
	return s, nil
}

// head is the first size bytes of a device.
type head struct {
	transfer.BlockSource
	size int64
}

func (h *head) Size() int64 { return h.size }

func (h *head) ReadAt(p []byte, off int64) (int, error) {
	return io.NewSectionReader(h.BlockSource, 0, h.size).ReadAt(p, off)
}

func (h *head) NextData(off int64) (start, end int64, err error) {
	start, end, err = h.BlockSource.NextData(off)
	return min(start, h.size), min(end, h.size), err
}

// blockSource, blockTarget and blockJournal give package device's types the
// shape that package transfer asks for.
type blockSource struct {
	*device.Source
	name   string
	intact func() error // tells what else is wrong with what was read
	done   func() error // after Close
}

func (s *blockSource) Unchanged() error { return errors.Join(s.Source.Unchanged(), s.intact()) }

func (s *blockSource) Close() error { return errors.Join(s.Source.Close(), s.done()) }

func (s *blockSource) Name() string { return s.name }

func (s *blockSource) BadRanges() []transfer.Range {
	var out []transfer.Range
	for _, r := range s.Source.BadRanges() {
		out = append(out, transfer.Range{Start: r.Start, Length: r.Length})
	}
	return out
}

type blockTarget struct {
	*device.Target
	name string
}

func (t *blockTarget) Name() string { return t.name }

type blockJournal struct{ *device.Journal }

func (j *blockJournal) Add(blocks []transfer.StoredBlock) error {
	out := make([]device.Extent, len(blocks))
	for i, b := range blocks {
		out[i] = device.Extent{Index: b.Index, Sum: b.Sum}
	}
	return j.Journal.Add(out)
}
