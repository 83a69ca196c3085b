package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// WriteVolume stores the stream of a volume's snapshot in a device or image file. It is the target
// end for SendStream without flags.
type WriteVolume struct {
	Volume  device.VolumeTask `json:"volume"`
	Options transfer.Options  `json:"options,omitzero"`
}

func (WriteVolume) to() kind { return volume }

// VolumeArrival describes the stream of a volume's snapshot, or of the changes since base, which is
// zero for none.
func VolumeArrival(snapshot, base device.VolumeSnapshot) zfs.Arrival {
	return zfs.Arrival{Volume: true, Base: base.GUID, Snapshots: []zfs.SnapshotID{{Name: snapshot.Name, GUID: snapshot.GUID}}}
}

// volumeSink is the sink of a volume's stream.
type volumeSink struct {
	stream *zfs.VolumeStream
	target *device.VolumeTarget
}

var _ transfer.TailHolder = (*volumeSink)(nil)

func openVolume(ctx context.Context, t device.VolumeTask) (*volumeSink, error) {
	target, err := device.OpenVolume(ctx, t)
	if err != nil {
		return nil, err
	}
	stream, err := zfs.NewVolumeStream(VolumeArrival(t.Snapshot, t.Base), t.Snapshot.Size, target)
	if err != nil {
		return nil, errors.Join(err, target.Abort())
	}
	return &volumeSink{stream, target}, nil
}

func (s *volumeSink) Write(p []byte) (int, error) { return s.stream.Write(p) }

func (s *volumeSink) Name() string { return s.target.Name() }

// Withhold keeps the END record back until the whole stream is authenticated.
func (s *volumeSink) Withhold() int { return zfs.TailSize }

// Commit makes the target hold the snapshot if the stream was complete.
func (s *volumeSink) Commit(ctx context.Context) error {
	if err := s.stream.End(); err != nil {
		return errors.Join(err, s.target.Abort())
	}
	return s.target.Commit(ctx)
}

func (s *volumeSink) Abort(error) error { return s.target.Abort() }

// VolumeDigestQuery requests the digest of the contents of a volume's snapshot.
type VolumeDigestQuery struct {
	Snapshot device.VolumeSnapshot `json:"snapshot"`
	Options  device.Options        `json:"options"`
}

// DigestVolume returns the digest of a volume's snapshot. A device with the same contents has the same
// digest.
func (l *Local) DigestVolume(ctx context.Context, q VolumeDigestQuery, progress func(transfer.Progress)) (d device.Digest, err error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	hash, err := device.NewVolumeHash(q.Snapshot.Size, q.Options)
	if err != nil {
		return d, err
	}
	stream, err := zfs.NewVolumeStream(VolumeArrival(q.Snapshot, device.VolumeSnapshot{}), q.Snapshot.Size, hash)
	if err != nil {
		return d, err
	}
	src, err := l.tools.OpenSend(ctx, zfs.SendSpec{Dataset: q.Snapshot.Dataset, To: q.Snapshot.Name})
	if err != nil {
		return d, err
	}
	defer src.Close()
	from := &meteredReader{Reader: src, progress: progress, start: time.Now()}
	if _, err = io.CopyBuffer(stream, from, make([]byte, 1<<20)); err == nil {
		err = stream.End()
	}
	if err != nil {
		return d, fmt.Errorf("digest of %s: %w", src.Name(), err)
	}
	d = hash.Digest()
	d.Result.Elapsed, d.Result.Bytes = time.Since(from.start), from.bytes
	return d, nil
}

// checkVolume returns an error if the record of a volume's copy names no valid snapshots.
func checkVolume(c *device.VolumeCopy) error {
	if c == nil {
		return nil
	}
	for _, s := range []device.VolumeSnapshot{c.Held, c.Applying} {
		if s == (device.VolumeSnapshot{}) {
			continue
		}
		if _, _, err := zfs.ParseSnapshot(s.String()); err != nil {
			return err
		}
	}
	return nil
}
