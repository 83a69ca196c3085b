package device

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
)

// DigestQuery asks for the digest of a device.
type DigestQuery struct {
	Device Facts `json:"device"`
	// Size, where it is not 0, is how many of the device's first bytes count.
	Size    int64   `json:"size,omitempty"`
	Options Options `json:"options"`
}

// Digest is a device's digest.
type Digest struct {
	Result Result `json:"result"`
	// Parts are hashes of consecutive ranges of PartBytes each, at most
	// maxParts: they tell where two devices differ.
	Parts     [][]byte `json:"parts"`
	PartBytes int64    `json:"part_bytes"`
}

// maxParts bounds the answer to a DigestQuery.
const maxParts = 4096

// Parts says how a device that was hashed in blocks is cut.
func Parts(size int64, block int) (count int, bytes int64) {
	blocks := (size + int64(block) - 1) / int64(block)
	per := max(1, (blocks+maxParts-1)/maxParts)
	return int((blocks + per - 1) / per), per * int64(block)
}

// Differ are the ranges, of PartBytes each where they stand alone, in which two
// devices that were hashed alike differ.
func (d Digest) Differ(other Digest) (out []Range) {
	for i := range max(len(d.Parts), len(other.Parts)) {
		if i < len(d.Parts) && i < len(other.Parts) && bytes.Equal(d.Parts[i], other.Parts[i]) {
			continue
		}
		out = joined(out, Range{int64(i) * d.PartBytes, d.PartBytes})
	}
	return out
}

// DigestOf hashes a device. progress may be nil.
func DigestOf(ctx context.Context, q DigestQuery, progress func(transfer.Progress)) (d Digest, err error) {
	if err := q.Options.Fits(q.Device.Size); err != nil {
		return d, fmt.Errorf("%s: %w", q.Device.Path, err)
	}
	src, err := OpenSource(ctx, q.Device, false)
	if err != nil {
		return d, err
	}
	if q.Size > 0 {
		src.size = min(src.size, q.Size)
	}
	var sums []Sum
	if d.Result, sums, err = hashAll(ctx, src, q.Options, progress); err != nil {
		return d, err
	}
	_, d.PartBytes = Parts(d.Result.Device.Size, d.Result.Device.Block)
	for part := range slices.Chunk(sums, max(1, int(d.PartBytes)/d.Result.Device.Block)) {
		fold := foldSums(part)
		d.Parts = append(d.Parts, fold[:])
	}
	return d, nil
}

// hashAll hashes a device. The source is closed in any case. sums are those of
// its blocks.
//
// progress may be nil; it is called about twice a second and once at the end.
func hashAll(ctx context.Context, src blockSource, opt Options, progress func(transfer.Progress)) (_ Result, sums []Sum, err error) {
	opt = opt.filled()
	opt.NoVerify = false // which leaves the digest out
	pool := &blockPool{size: opt.Block}
	s := newScan(src, newGrid(src.Size(), opt.Cut()), pool, opt.workers())
	s.each = func(_ context.Context, _ int, _, _ int64, b *tcp.Block) error { pool.put(b); return nil }
	life := &transfer.Life{Stall: opt.Stall, Report: progress, Move: s.run, Moved: s.hash.bytes.Load,
		Commit:  func(context.Context) error { return src.Unchanged() },
		Account: func(life time.Duration) (int64, []transfer.Stage) { return s.hash.bytes.Load(), s.stages(life) },
		Stalled: func() (string, bool) { return src.Name() + " gave nothing", false }}
	res, err := life.Run(ctx)
	if cerr := src.Close(); err == nil {
		err = cerr
	}
	d := Account{Size: s.size, Block: int(s.block)}
	if err != nil {
		return Result{res, d}, nil, err
	}
	d.SourceDigest = opt.digest(s.cut.Root(s.sums))
	return Result{res, d}, s.sums, nil
}
