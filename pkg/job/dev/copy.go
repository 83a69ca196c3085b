package dev

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/dustin/go-humanize/english"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/job/measure"
	"zxfer/pkg/probe"
	"zxfer/pkg/retry"
	"zxfer/pkg/transport/connect"
)

// copy copies the device and retries after interruptions.
func (d *deviceJob) copy(ctx context.Context) error {
	name := fmt.Sprintf("%s -> %s", d.req.Source, d.req.Target)
	var err error
	if d.hasStream() {
		err = d.copyStream(ctx, name)
	} else {
		l := ends.NewLoop(name, d.req.Retries, d.rep.Log)
		l.Try = d.try
		l.Progress = func(ctx context.Context) (bool, error) {
			before := d.state.Stored
			err := d.inspectDevices(ctx)
			return d.state.Stored > before, err
		}
		l.Retryable = d.retryable
		err = l.Run(ctx)
	}
	if err != nil {
		return err
	}
	return d.checkBadRanges()
}

// retryable reports whether another try may succeed. A refusal that the first try did not get comes most likely from the
// previous try, whose agent has not noticed the lost connection yet.
func (d *deviceJob) retryable(err, _ error) bool {
	return ends.Transient(err) || len(d.report.Results) > 1 && fault.ClassOf(err) == fault.Refused
}

// copyStream copies a standard stream. It cannot be read again, so there is no retry.
func (d *deviceJob) copyStream(ctx context.Context, name string) error {
	err := d.try(ctx, 0)
	if err != nil && ctx.Err() != nil {
		return fault.Failf("start again: a copy of a stream cannot be resumed", "%s: interrupted", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// inspectDevices inspects both ends before a retry: device names may change when a host restarts.
func (d *deviceJob) inspectDevices(ctx context.Context) error {
	same := func(at *hosts.Conn, planned *device.Facts, end endpoint.Endpoint) error {
		now, err := hosts.Call(ctx, at, hosts.OpInspectDevice, planned.Path)
		switch {
		case err != nil:
			return err
		case now.Kind == device.KindMissing && !planned.IsFile(): // not yet present
			return fmt.Errorf("%s does not exist", end)
		case !now.Same(*planned):
			return &retry.Permanent{Err: fault.Failf("use a persistent name, such as one in /dev/disk/by-id",
				"%s: it is another device than at the start of the copy", end)}
		}
		// Keep the planned facts of a source file: they reveal later writes to it.
		if planned != &d.task.Source || !now.IsFile() {
			*planned = now
		}
		return nil
	}
	err := same(d.ends.Source.Conn, &d.task.Source, d.req.Source)
	if err != nil {
		return err
	}
	// Any state comes from this job.
	d.task.NoResume = false
	if err = same(d.ends.Target.Conn, &d.task.Target, d.req.Target); err == nil {
		d.state, err = hosts.Call(ctx, d.ends.Target.Conn, hosts.OpDeviceState, d.task)
	}
	return err
}

// checkBadRanges returns an error if parts of the source were unreadable.
func (d *deviceJob) checkBadRanges() error {
	r := d.report.Results[len(d.report.Results)-1]
	if len(r.BadRanges) == 0 {
		return nil
	}
	var n int64
	for _, b := range r.BadRanges {
		n += b.Length
	}
	places := english.Plural(len(r.BadRanges), "place", "")
	return fault.Failf("to recover more, run ddrescue on the copy, with the map that {{map FILE}} writes", "%s: %d bytes in %s were unreadable, and are zeros in the copy", d.req.Source, n, places)
}

func (d *deviceJob) try(ctx context.Context, tries int) error {
	done := uint64(d.state.Stored)
	if d.req.NoResume && tries == 0 {
		done = 0
	}
	d.rep.DeviceStarted(d.report, done)
	res, err := d.ends.Search.Run(ctx,
		connect.From{Host: d.ends.Source.Conn, What: hosts.ReadDevice{Task: d.task}},
		connect.To{Host: d.ends.Target.Conn, What: hosts.WriteDevice{Task: d.task}},
		connect.Count{Done: done, Total: d.report.Size}, func(p connect.Progress) { d.rep.Progress(1, p) })
	r := d.result(res)
	if err == nil {
		err = d.compareDigests(r)
	}
	r.Tries, r.Resumes = tries+1, done > 0
	if err != nil {
		r.Error = err.Error()
	}
	d.report.Results = append(d.report.Results, r)
	d.rep.DeviceFinished(d.report, r)
	return err
}

// compareDigests compares the digests that both ends report for a finished copy.
func (d *deviceJob) compareDigests(r *Result) error {
	if r.SourceDigest == "" || r.TargetDigest == "" || r.SourceDigest == r.TargetDigest {
		return nil
	}
	return fault.Failf("to compare them, use zxfer dev --verify-only", "%s and %s: %s %s was read and %s was written", d.req.Source, d.req.Target, strings.ToUpper(d.report.Digest), r.SourceDigest, r.TargetDigest)
}

// result merges the accounts of both ends.
func (d *deviceJob) result(res connect.Result) *Result {
	sent, received := res.Sent, res.Received
	r := &Result{Wire: res.Wire, WireBytes: max(sent.WireBytes, received.WireBytes), Bottleneck: res.Bottleneck}
	if received.Device != nil {
		r.Account = *received.Device
	}
	if sent.Device != nil {
		if sent.Device.SourceDigest != "" {
			r.SourceDigest = sent.Device.SourceDigest
		}
		r.BadRanges = sent.Device.BadRanges
	}
	if isStandard(d.req.Target) && sent.Device != nil {
		r.Account = *sent.Device
	}
	if d.hasStream() {
		d.report.Size = uint64(r.Size)
	} else {
		r.Size = d.task.Source.Size
	}
	r.Block = d.task.Options.Block
	r.Speed = connect.SpeedOf(uint64(max(0, r.Data+r.Zeros+r.Present-r.Resumed)), res.Seconds)
	return r
}

// measure measures the parts of a device copy: the link, reading the source, and writing next to
// an image file. It does not write to block devices.
func (d *deviceJob) measure(ctx context.Context) error {
	m := &measure.Measurer{Ends: d.ends, Link: d.ends.Search.Link().Resolve(false), Time: measure.Time, Reporter: d.rep}
	var all measure.Rounds
	if !d.ends.SameHost() {
		all.Add(m.OnLink(forecast.Link, &d.ends.Source, &d.ends.Target))
	}
	if !isStandard(d.req.Source) {
		all.Add(m.OnHost(&d.ends.Source, probe.Request{ID: probe.PathRead, Dataset: d.task.Source.Path}))
	}
	if !isStandard(d.req.Target) && d.task.Target.IsFile() {
		all.Add(m.OnHost(&d.ends.Target, probe.Request{ID: probe.PathWrite, Dataset: path.Dir(d.task.Target.Path)}))
	}
	if err := m.Run(ctx, all); err != nil {
		return err
	}
	d.ends.Links = m.Links
	d.report.Ceilings, d.report.Findings = m.Ceilings, d.ends.DeviceFindings()
	d.report.Expected = m.Expected(d.report.Size, d.task.Options.BandLimit)
	return nil
}
