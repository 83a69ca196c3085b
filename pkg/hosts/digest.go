package hosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Sender starts streams.
type Sender interface {
	OpenSend(ctx context.Context, s zfs.SendSpec) (cli.Stream, error)
}

// Digest reads a stream and returns the digest of its contents.
func (l *Local) Digest(ctx context.Context, q ContentQuery, progress func(transfer.Progress)) (d Digest, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	if q.KeyFile != "" {
		var unload func() error
		if unload, err = l.useKey(ctx, q.Dataset, q.KeyFile); err != nil {
			return d, err
		}
		defer func() { err = errors.Join(err, unload()) }()
	}
	return DigestOf(ctx, l.tools, q, progress)
}

// DigestOf reads a stream that a host sends and returns the digest of its contents.
func DigestOf(ctx context.Context, host Sender, q ContentQuery,
	progress func(transfer.Progress)) (d Digest, err error) {
	q.Flags = q.Flags.ForDigest()
	src, err := host.OpenSend(ctx, q.SendSpec)
	if err != nil {
		return d, err
	}
	defer src.Close()
	from := &meteredReader{Reader: src, progress: progress, start: time.Now()}
	if d, err = zfs.ContentDigest(bufio.NewReaderSize(from, 1<<20), q.Within, q.Seed); err != nil {
		return Digest{}, fmt.Errorf("digest of %s: %w", src.Name(), err)
	}
	return d, nil
}

// meteredReader reports progress every half second and at the end.
type meteredReader struct {
	io.Reader
	progress          func(transfer.Progress) // may be nil
	start, lastReport time.Time
	bytes             int64
}

func (m *meteredReader) Read(b []byte) (int, error) {
	n, err := m.Reader.Read(b)
	m.bytes += int64(n)
	if now := time.Now(); m.progress != nil && (err != nil || now.Sub(m.lastReport) >= 500*time.Millisecond) {
		m.lastReport = now
		m.progress(transfer.Progress{Bytes: m.bytes, Elapsed: now.Sub(m.start)})
	}
	return n, err
}
