package probe

import (
	"context"
	"io"
	"time"

	"zxfer/pkg/transfer"
)

// Source measures how fast a source yields its stream, which it closes.
func Source(ctx context.Context, r Request, src transfer.Source) (Ceiling, error) {
	defer src.Close()
	return measure(ctx, r, func(ctx context.Context, d time.Duration) (t tally, err error) {
		defer context.AfterFunc(ctx, func() { _ = src.Close() })()
		p := make([]byte, block)
		start := time.Now()
		for time.Since(start) < d {
			n, err := src.Read(p)
			t.bytes += uint64(n)
			t.seconds = time.Since(start).Seconds()
			if err == io.EOF {
				t.note = "the whole stream"
				return t, nil
			}
			if err != nil {
				return t, err
			}
		}
		return t, nil
	})
}
