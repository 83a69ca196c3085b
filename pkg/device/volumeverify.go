package device

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

// settle makes all stored data durable and reads it back.
func (v *VolumeTarget) settle() error {
	v.inFlight.Wait()
	if err := v.writeErr.Load(); err != nil {
		return *err
	}
	if err := v.Sync(); err != nil {
		return err
	}
	if !v.task.NoVerify {
		var g errgroup.Group
		g.SetLimit(volumeBuffers)
		for _, r := range v.written {
			g.Go(func() error { return v.readBack(r.Range, func(p []byte) bool { return MarkOf(p) == r.mark }) })
		}
		for _, r := range v.zeroed {
			g.Go(func() error { return v.readBackZeros(r) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		v.account.Verified += v.pending
	}
	v.written, v.zeroed, v.pending = v.written[:0], v.zeroed[:0], 0
	return nil
}

// readBackZeros checks a zeroed range. A hole of a file needs no reading.
func (v *VolumeTarget) readBackZeros(r Range) error {
	for off, end := r.Start, r.Start+r.Length; off < end; {
		data, stop, err := v.NextData(off)
		if err != nil {
			return err
		}
		data, stop = min(data, end), min(stop, end)
		for at := data; at < stop; at += volumeChunk {
			if err := v.readBack(Range{at, min(volumeChunk, stop-at)}, IsZero); err != nil {
				return err
			}
		}
		off = max(stop, data)
	}
	return nil
}

// readBack checks a range of at most volumeChunk bytes.
func (v *VolumeTarget) readBack(r Range, ok func([]byte) bool) error {
	if v.ctx.Err() != nil {
		return context.Cause(v.ctx)
	}
	buffer := <-v.buffers
	defer func() { v.buffers <- buffer }()
	p := buffer[:r.Length]
	if n, err := v.ReadAt(p, r.Start); n < len(p) {
		return fmt.Errorf("%s: read back at byte %d: %w", v.Name(), r.Start, errors.Join(err, io.ErrUnexpectedEOF))
	}
	if !ok(p) {
		return fmt.Errorf("%s: %w: bytes %d to %d", v.Name(), ErrCorrupt, r.Start, r.Start+r.Length)
	}
	return nil
}
