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

// DigestQuery requests the digest of a device.
type DigestQuery struct {
	Device Facts `json:"device"`
	// Size limits the digest to the first Size bytes. 0 means the whole device.
	Size    int64   `json:"size,omitempty"`
	Options Options `json:"options"`
}

// Digest is the reply to a DigestQuery.
type Digest struct {
	Result Result `json:"result"`
	// Parts are hashes of consecutive ranges of PartBytes each, at most maxParts.
	// They locate the differences between two devices.
	Parts     [][]byte `json:"parts"`
	PartBytes int64    `json:"part_bytes"`
}

// maxParts limits the size of a Digest.
const maxParts = 4096

// Parts returns the number and the length of the parts of a device hashed in
// blocks.
func Parts(size int64, block int) (count int, bytes int64) {
	blocks := (size + int64(block) - 1) / int64(block)
	per := max(1, (blocks+maxParts-1)/maxParts)
	return int((blocks + per - 1) / per), per * int64(block)
}

// Differ returns the ranges in which two devices differ. Both must have been hashed
// with the same options. Adjacent ranges are joined.
func (d Digest) Differ(other Digest) (out []Range) {
	for i := range max(len(d.Parts), len(other.Parts)) {
		if i < len(d.Parts) && i < len(other.Parts) && bytes.Equal(d.Parts[i], other.Parts[i]) {
			continue
		}
		out = joinRange(out, Range{int64(i) * d.PartBytes, d.PartBytes})
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

// hashAll hashes a device and returns the sums of its blocks. It always closes the
// source.
func hashAll(ctx context.Context, src blockSource, opt Options, progress func(transfer.Progress)) (_ Result, sums []Sum, err error) {
	opt = opt.filled()
	opt.NoVerify = false // otherwise opt.digest returns ""
	pool := &blockPool{size: opt.Block}
	s := newScan(src, newGrid(src.Size(), opt.Cut()), pool, opt.workers())
	s.onBlock = func(_ context.Context, _ int, _, _ int64, b *tcp.Block) error { pool.put(b); return nil }
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
