package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"zxfer/pkg/device"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// Arguments of operations that take more than one value.
type (
	propertiesArgs struct {
		Names      []string `json:"names"`
		Properties []string `json:"properties"`
	}
	holdArgs struct {
		Tag       string   `json:"tag"`
		Snapshots []string `json:"snapshots"`
	}
	none struct{}
)

// ErrUnknownOperation is a call of what the agent does not have.
var ErrUnknownOperation = errors.New("unknown operation")

// operation carries out one call on a Site.
type operation func(ctx context.Context, s site.Site, body json.RawMessage, progress func(transfer.Progress)) (any, error)

// op makes an operation of a function with typed arguments.
func op[A, R any](f func(context.Context, site.Site, A) (R, error)) operation {
	return func(ctx context.Context, s site.Site, body json.RawMessage, _ func(transfer.Progress)) (any, error) {
		var args A
		if err := decodeStrictly(body, &args); err != nil {
			return nil, fmt.Errorf("malformed arguments: %w", err)
		}
		return f(ctx, s, args)
	}
}

// do makes an operation of a function without a result.
func do[A any](f func(context.Context, site.Site, A) error) operation {
	return op(func(ctx context.Context, s site.Site, a A) (none, error) { return none{}, f(ctx, s, a) })
}

// The operations, by the names that cross the wire.
const (
	opFacts         = "facts"
	opHostFacts     = "host-facts"
	opList          = "list"
	opDatasetOf     = "dataset-of"
	opProperties    = "properties"
	opEstimate      = "estimate"
	opSnapshot      = "snapshot"
	opHold          = "hold"
	opRelease       = "release"
	opHolds         = "holds"
	opBookmark      = "bookmark"
	opDestroy       = "destroy"
	opCreateParents = "create-parents"
	opDiscard       = "discard-partial"
	opDigest        = "digest"
	opOffer         = "offer"
	opTransfer      = "transfer"
	opInspectDevice = "inspect-device"
	opDeviceState   = "device-state"
	opDigestDevice  = "digest-device"
	opCapture       = "capture"
	opMeasure       = "measure"
)

func operations() map[string]operation {
	return map[string]operation{
		opFacts: op(func(ctx context.Context, s site.Site, _ none) (site.Facts, error) { return s.Facts(ctx) }),
		opHostFacts: op(func(ctx context.Context, s site.Site, _ none) (site.Facts, error) {
			return s.HostFacts(ctx)
		}),
		opList: op(func(ctx context.Context, s site.Site, q site.ListQuery) (zfs.Listing, error) { return s.List(ctx, q) }),
		opDatasetOf: op(func(ctx context.Context, s site.Site, path string) (string, error) {
			return s.DatasetOf(ctx, path)
		}),
		opProperties: op(func(ctx context.Context, s site.Site, a propertiesArgs) (map[string]map[string]zfs.Property, error) {
			return s.Properties(ctx, a.Names, a.Properties)
		}),
		opEstimate: op(func(ctx context.Context, s site.Site, a []zfs.SendSpec) ([]uint64, error) { return s.Estimate(ctx, a) }),
		opSnapshot: do(func(ctx context.Context, s site.Site, a []string) error { return s.Snapshot(ctx, a) }),
		opHold:     do(func(ctx context.Context, s site.Site, a holdArgs) error { return s.Hold(ctx, a.Tag, a.Snapshots) }),
		opRelease:  do(func(ctx context.Context, s site.Site, a holdArgs) error { return s.Release(ctx, a.Tag, a.Snapshots) }),
		opHolds: op(func(ctx context.Context, s site.Site, a []string) (map[string][]string, error) {
			return s.Holds(ctx, a)
		}),
		opBookmark: do(func(ctx context.Context, s site.Site, a map[string]string) error { return s.Bookmark(ctx, a) }),
		opDestroy:  do(func(ctx context.Context, s site.Site, a []string) error { return s.Destroy(ctx, a) }),
		opCreateParents: do(func(ctx context.Context, s site.Site, dataset string) error {
			return s.CreateParents(ctx, dataset)
		}),
		opDiscard: do(func(ctx context.Context, s site.Site, dataset string) error { return s.DiscardPartial(ctx, dataset) }),
		opDigest: op(func(ctx context.Context, s site.Site, q site.ContentQuery) (site.Digest, error) {
			return s.Digest(ctx, q)
		}),
		opOffer: op(func(ctx context.Context, s site.Site, a wire.Offer) (wire.Ticket, error) { return s.Offer(ctx, a) }),
		opInspectDevice: op(func(ctx context.Context, s site.Site, path string) (device.Facts, error) {
			return s.InspectDevice(ctx, path)
		}),
		opDeviceState: op(func(ctx context.Context, s site.Site, t site.DeviceTask) (site.DeviceState, error) {
			return s.DeviceState(ctx, t)
		}),
		opDigestDevice: func(ctx context.Context, s site.Site, body json.RawMessage, progress func(transfer.Progress)) (any, error) {
			var q site.DigestQuery
			if err := decodeStrictly(body, &q); err != nil {
				return nil, fmt.Errorf("malformed arguments: %w", err)
			}
			return s.DigestDevice(ctx, q, progress)
		},
		opCapture: op(func(ctx context.Context, s site.Site, brief bool) ([]byte, error) { return s.Capture(ctx, brief) }),
		opMeasure: op(func(ctx context.Context, s site.Site, r probe.Request) (probe.Ceiling, error) {
			return s.Measure(ctx, r)
		}),
		opTransfer: func(ctx context.Context, s site.Site, body json.RawMessage, progress func(transfer.Progress)) (any, error) {
			var t site.Task
			if err := decodeStrictly(body, &t); err != nil {
				return nil, fmt.Errorf("malformed arguments: %w", err)
			}
			return s.Transfer(ctx, t, progress)
		},
	}
}
