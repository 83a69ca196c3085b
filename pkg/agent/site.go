package agent

import (
	"context"
	"fmt"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/probe"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

var _ site.Site = (*Remote)(nil)

// Name is the host as it was typed.
func (r *Remote) Name() string { return r.host }

// RTT is the shortest round trip of the control connection so far.
func (r *Remote) RTT() time.Duration { return time.Duration(r.rtt.Load()) }

// checked is the error of an answer that answers something else than was
// asked; nil where err is.
func (r *Remote) checked(op string, err error) error {
	if err == nil {
		return nil
	}
	// Not of the class that the same text has where a user's own words are judged.
	return fault.Failf("", "%s: malformed answer of %s: %w", r.host, op, err)
}

// Facts asks the agent.
func (r *Remote) Facts(ctx context.Context) (f site.Facts, err error) {
	if err = r.call(ctx, opFacts, none{}, &f, nil); err == nil {
		err = r.checked(opFacts, site.CheckFacts(&f))
	}
	return f, err
}

// HostFacts asks the agent.
func (r *Remote) HostFacts(ctx context.Context) (f site.Facts, err error) {
	if err = r.call(ctx, opHostFacts, none{}, &f, nil); err == nil {
		err = r.checked(opHostFacts, site.CheckFacts(&f))
	}
	return f, err
}

// List asks the agent.
func (r *Remote) List(ctx context.Context, q site.ListQuery) (l zfs.Listing, err error) {
	if err = r.call(ctx, opList, q, &l, nil); err == nil {
		err = r.checked(opList, site.CheckListing(q, &l))
	}
	return l, err
}

// DatasetOf asks the agent.
func (r *Remote) DatasetOf(ctx context.Context, path string) (dataset string, err error) {
	if err = r.call(ctx, opDatasetOf, path, &dataset, nil); err == nil {
		_, err = zfs.ParseDataset(dataset)
		err = r.checked(opDatasetOf, err)
	}
	return dataset, err
}

// Properties asks the agent.
func (r *Remote) Properties(ctx context.Context, names, properties []string) (m map[string]map[string]zfs.Property, err error) {
	if err = r.call(ctx, opProperties, propertiesArgs{names, properties}, &m, nil); err == nil {
		err = r.checked(opProperties, site.CheckProperties(names, properties, m))
	}
	return m, err
}

// Estimate asks the agent.
func (r *Remote) Estimate(ctx context.Context, streams []zfs.SendSpec) (sizes []uint64, err error) {
	// In parts, where they are so many that an agent would not take them at once.
	for _, some := range requestsOf(streams) {
		var part []uint64
		if err = r.call(ctx, opEstimate, some, &part, nil); err == nil && len(part) != len(some) {
			err = r.checked(opEstimate, fmt.Errorf("%d sizes of %d streams", len(part), len(some)))
		}
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, part...)
	}
	return sizes, nil
}

// Snapshot asks the agent.
func (r *Remote) Snapshot(ctx context.Context, snapshots []string) error {
	return r.call(ctx, opSnapshot, snapshots, nil, nil)
}

// Hold asks the agent.
func (r *Remote) Hold(ctx context.Context, tag string, snapshots []string) error {
	return r.call(ctx, opHold, holdArgs{tag, snapshots}, nil, nil)
}

// Release asks the agent.
func (r *Remote) Release(ctx context.Context, tag string, snapshots []string) error {
	return r.call(ctx, opRelease, holdArgs{tag, snapshots}, nil, nil)
}

// Holds asks the agent.
func (r *Remote) Holds(ctx context.Context, snapshots []string) (tags map[string][]string, err error) {
	if err = r.call(ctx, opHolds, snapshots, &tags, nil); err == nil {
		err = r.checked(opHolds, site.CheckHolds(snapshots, tags))
	}
	return tags, err
}

// Bookmark asks the agent.
func (r *Remote) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	return r.call(ctx, opBookmark, bookmarks, nil, nil)
}

// Destroy asks the agent.
func (r *Remote) Destroy(ctx context.Context, versions []string) error {
	return r.call(ctx, opDestroy, versions, nil, nil)
}

// CreateParents asks the agent.
func (r *Remote) CreateParents(ctx context.Context, dataset string) error {
	return r.call(ctx, opCreateParents, dataset, nil, nil)
}

// DiscardPartial asks the agent.
func (r *Remote) DiscardPartial(ctx context.Context, dataset string) error {
	return r.call(ctx, opDiscard, dataset, nil, nil)
}

// Digest asks the agent.
func (r *Remote) Digest(ctx context.Context, q site.ContentQuery) (d site.Digest, err error) {
	if err = r.call(ctx, opDigest, q, &d, nil); err == nil {
		err = r.checked(opDigest, site.CheckDigest(d))
	}
	return d, err
}

// InspectDevice asks the agent.
func (r *Remote) InspectDevice(ctx context.Context, path string) (f device.Facts, err error) {
	if err = r.call(ctx, opInspectDevice, path, &f, nil); err == nil {
		err = r.checked(opInspectDevice, site.CheckDevice(path, &f))
	}
	return f, err
}

// DeviceState asks the agent.
func (r *Remote) DeviceState(ctx context.Context, t site.DeviceTask) (st site.DeviceState, err error) {
	if err = r.call(ctx, opDeviceState, t, &st, nil); err == nil {
		err = r.checked(opDeviceState, site.CheckDeviceState(t, &st))
	}
	return st, err
}

// DigestDevice asks the agent.
func (r *Remote) DigestDevice(ctx context.Context, q site.DigestQuery, report func(transfer.Progress)) (d site.DeviceDigest, err error) {
	if err = r.call(ctx, opDigestDevice, q, &d, report); err == nil {
		err = r.checked(opDigestDevice, site.CheckDeviceDigest(q, &d))
	}
	return d, err
}

// Offer asks the agent.
func (r *Remote) Offer(ctx context.Context, o wire.Offer) (t wire.Ticket, err error) {
	if err = r.call(ctx, opOffer, o, &t, nil); err == nil {
		err = r.checked(opOffer, site.CheckTicket(o, t))
	}
	return t, err
}

// Transfer asks the agent.
func (r *Remote) Transfer(ctx context.Context, t site.Task, report func(transfer.Progress)) (res transfer.Result, err error) {
	if err = r.call(ctx, opTransfer, t, &res, report); err == nil {
		err = r.checked(opTransfer, site.CheckResult(t, &res))
	}
	return res, err
}

// Capture asks the agent.
func (r *Remote) Capture(ctx context.Context, brief bool) (archive []byte, err error) {
	err = r.call(ctx, opCapture, brief, &archive, nil)
	return archive, err
}

// Measure asks the agent.
func (r *Remote) Measure(ctx context.Context, q probe.Request) (c probe.Ceiling, err error) {
	if err = r.call(ctx, opMeasure, q, &c, nil); err == nil {
		err = r.checked(opMeasure, site.CheckCeiling(q, &c))
	}
	return c, err
}
