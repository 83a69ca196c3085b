package hosts

import (
	"context"

	"zxfer/pkg/device"
	"zxfer/pkg/transfer"
)

// SetStandard gives the Site the standard input and output of its process.
func (l *Local) SetStandard(std device.Streams) { l.std = std }

// InspectDevice looks at a device or image file; one that is not there yet,
// in a directory that is, is of kind missing.
func (l *Local) InspectDevice(ctx context.Context, path string) (device.Facts, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return device.Inspect(ctx, path)
}

// DeviceState looks for the journal of an earlier copy, and whether the target
// still holds what that stored.
func (l *Local) DeviceState(_ context.Context, t device.Task) (device.State, error) {
	return device.StateOf(t)
}

// DigestDevice hashes a device.
func (l *Local) DigestDevice(ctx context.Context, q device.DigestQuery, progress func(transfer.Progress)) (device.Digest, error) {
	ctx, cancel := l.bound(ctx)
	defer cancel()
	return device.DigestOf(ctx, q, progress)
}
