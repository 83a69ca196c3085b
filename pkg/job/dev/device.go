// Package dev runs `zxfer dev`: it copies or compares two devices or image files, or copies a snapshot of a volume
// to one. Package device reads and writes the blocks.
package dev

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/kballard/go-shellquote"
	"golang.org/x/sync/errgroup"

	"zxfer/pkg/device"
	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/outcome"
	"zxfer/pkg/preflight"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/connect"
)

// Request is a request for `zxfer dev`.
type Request struct {
	// Source.Name is an absolute path, or a volume with or without a snapshot.
	Source endpoint.Endpoint
	Target endpoint.Endpoint
	// Compare hashes both devices and copies nothing.
	Compare bool
	// Verify compares the whole target after a copy of a volume. Decrypt permits a copy of an
	// encrypted volume, which is not encrypted.
	Verify, Decrypt bool

	DryRun  bool
	Measure bool // measure the bottleneck before the copy
	// Digest is device.XXH3 or device.BLAKE3. "" uses XXH3, except for resumed copies and delta
	// copies.
	Digest string

	transport.Settings
	device.Request // its Options lack the transport settings

	SkipChecks []string // IDs of findings to skip

	Retries int // after interruptions, without progress in between
}

// OfVolume reports whether the source is a volume, which is never the root of a pool.
func (r *Request) OfVolume() bool {
	return !r.Source.Path() && strings.Contains(r.Source.Name, "/")
}

// Reporter receives the events of a device copy.
type Reporter interface {
	ends.Watcher
	// DevicePlanned is called once, before any change.
	DevicePlanned(*Report)
	// DeviceStarted is called for every try; done counts resumed bytes.
	DeviceStarted(r *Report, done uint64)
	// Progress is called about twice a second; id is 1.
	Progress(id int, p connect.Progress)
	// DeviceFinished is called after every started try.
	DeviceFinished(r *Report, result *Result)
}

// Report is the JSON report of `zxfer dev`, first with the plan, then with results.
type Report struct {
	Schema             string             `json:"schema"` // "zxfer.dev/v1"
	Source             string             `json:"source"`
	Target             string             `json:"target"`
	DryRun             bool               `json:"dry_run"`
	Compare            bool               `json:"compare,omitempty"`
	Wire               connect.Report     `json:"wire"`
	From               *device.Facts      `json:"source_device,omitempty"`
	To                 *device.Facts      `json:"target_device,omitempty"`
	Problems           []finding.Finding  `json:"problems"`
	Findings           []finding.Finding  `json:"findings"`           // on hosts and link
	Ceilings           []probe.Ceiling    `json:"ceilings,omitempty"` // of --measure
	Expected           *forecast.Expected `json:"expected,omitempty"`
	Size               uint64             `json:"size"`
	Block              int                `json:"block"`
	Digest             string             `json:"digest,omitempty"` // algorithm: xxh3 or blake3
	Delta              bool               `json:"delta,omitempty"`
	Resumable          uint64             `json:"resumable,omitempty"` // bytes stored by an interrupted copy
	Unusable           string             `json:"unusable,omitempty"`  // why it cannot be resumed
	Results            []*Result          `json:"results"`             // one per try
	Seconds            float64            `json:"seconds,omitempty"`   // duration of copying or comparing
	Equal              *bool              `json:"equal,omitempty"`     // of a comparison
	Differ             []device.Range     `json:"differ,omitempty"`    // of a comparison: approximate ranges
	Volume             *VolumeReport      `json:"volume,omitempty"`    // of a copy of a volume's snapshot
	outcome.Conclusion                    // planned, done, equal, different, failed, refused, interrupted
}

// Result is the result of one try.
type Result struct {
	device.Account
	connect.Speed        // of device bytes
	WireBytes     int64  `json:"wire_bytes"`
	Wire          string `json:"wire"`
	Tries         int    `json:"tries"`
	Resumes       bool   `json:"resumes"`
	connect.Bottleneck
	Error string `json:"error,omitempty"`
}

// Run runs `zxfer dev`. It returns the report also with an error. Errors are Refused if
// nothing was changed, and Interrupted if the same command resumes.
func Run(ctx context.Context, req Request, at *hosts.Set, rep Reporter) (*Report, error) {
	d := &deviceJob{req: req, rep: rep, ends: ends.New(at, req.Source, req.Target, &req.Settings), report: &Report{
		Schema: "zxfer.dev/v1", Source: req.Source.String(), Target: req.Target.String(),
		DryRun: req.DryRun, Compare: req.Compare, Problems: []finding.Finding{}, Findings: []finding.Finding{}, Results: []*Result{},
	}}
	run := d.run
	if req.OfVolume() {
		run = (&volumeJob{dev: d}).run
	}
	err := outcome.Settle(ctx, run(ctx))
	r, success := d.report, outcome.Done
	switch {
	case req.DryRun:
		success = outcome.Planned
	case r.Volume != nil && r.Volume.UpToDate && len(r.Results) == 0:
		success = outcome.UpToDate
	case req.Compare:
		success = "equal"
	}
	r.Conclusion = outcome.Conclude(err, success)
	if r.Equal != nil && !*r.Equal {
		r.Outcome = "different"
	}
	return r, err
}

type deviceJob struct {
	ends   *ends.Ends
	req    Request
	rep    Reporter
	report *Report
	task   device.Task
	state  device.State
	// sourceDigest hashes a source that is not a device.
	sourceDigest func(ctx context.Context, progress func(transfer.Progress)) (device.Digest, error)
}

func (d *deviceJob) run(ctx context.Context) error {
	survey := func(ctx context.Context) error {
		err := d.inspecting(ctx, d.survey)
		if err == nil && !d.req.Compare {
			err = d.checkCopy(ctx)
		}
		return err
	}
	measure := d.measure
	if !d.req.Measure {
		measure = nil
	}
	if done, err := d.prepare(ctx, &ends.Stages{Survey: survey, Moves: func() bool { return !d.req.Compare }, Measure: measure}); done {
		return err
	}
	return d.timed(ctx, d.copy)
}

func (d *deviceJob) inspecting(ctx context.Context, survey func(context.Context) error) error {
	return ends.WithActivity(ctx, d.rep, fmt.Sprintf("inspecting %s and %s", d.req.Source, d.req.Target), survey)
}

// prepare completes the stages and runs them, and the comparison if it was requested. done means that nothing is left
// to do.
func (d *deviceJob) prepare(ctx context.Context, s *ends.Stages) (done bool, err error) {
	s.Admit, s.Evaluate, s.DryRun, s.Planned = d.admit, d.evaluate, d.req.DryRun, func() { d.rep.DevicePlanned(d.report) }
	if err = d.ends.Prepare(ctx, d.rep, s); err == nil && d.req.Compare && !d.req.DryRun {
		err = ends.Unchanged(d.timed(ctx, d.compare))
	}
	return err != nil || d.req.DryRun || d.req.Compare, err
}

// evaluate describes the transport and evaluates the checks on the hosts and the link.
func (d *deviceJob) evaluate() {
	d.report.Wire, d.report.Findings = d.ends.Search.Link().ForSize(d.report.Size).Report(false, true), d.ends.DeviceFindings()
}

// timed runs f and records its duration in the report.
func (d *deviceJob) timed(ctx context.Context, f func(context.Context) error) error {
	start := time.Now()
	err := f(ctx)
	if len(d.report.Results) > 0 {
		d.report.Seconds = time.Since(start).Seconds()
	}
	if d.ends.PathChanged() {
		d.evaluate()
	}
	return err
}

// survey inspects both devices and chooses the transport.
func (d *deviceJob) survey(ctx context.Context) error {
	if err := d.checkStreams(); err != nil {
		return err
	}
	for _, e := range []endpoint.Endpoint{d.req.Source, d.req.Target} {
		if !e.Path() && !isStandard(e) {
			return NotAPath(e)
		}
	}
	var from, to device.Facts
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) { from, err = inspect(gctx, &d.ends.Source, d.req.Source.Name); return })
	g.Go(func() (err error) { to, err = inspect(gctx, &d.ends.Target, d.req.Target.Name); return })
	g.Go(func() error { d.ends.Source.System = d.ends.Source.Conn.System(gctx); return nil })
	g.Go(func() error { d.ends.Target.System = d.ends.Target.Conn.System(gctx); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	d.report.From, d.report.To, d.report.Size = &from, &to, uint64(from.Size)
	d.task = device.Task{Source: from, Target: to, Request: d.req.Request}
	o := &d.task.Options
	o.Options = connect.Options(&d.req.Settings, time.Now())
	o.Block = d.req.Options.Block
	o.Quick = d.req.Digest != device.BLAKE3 && !o.Delta && !o.NoVerify
	if err := d.task.SetDefaults(); err != nil {
		return fault.Refusef(fault.HintOf(err), "%s: %w", d.req.Source, err)
	}
	d.report.Block, d.report.Delta, d.report.Digest = o.Block, o.Delta, o.Digest()
	if from.Kind == device.KindMissing {
		return fault.Refusef("check the name", "%s does not exist", d.req.Source)
	}
	if d.req.Compare {
		if to.Kind == device.KindMissing {
			return fault.Refusef("check the name", "%s does not exist", d.req.Target)
		}
		return nil
	}
	if err := d.ends.Choose(d.req.Settings, d.rep.Log); err != nil {
		return err
	}
	d.evaluate()
	return nil
}

// inspect queries the facts of a host and of its device.
func inspect(ctx context.Context, e *ends.End, name string) (f device.Facts, err error) {
	if e.Facts, err = hosts.Call(ctx, e.Conn, hosts.OpHostFacts, hosts.None{}); err == nil && name == device.Standard {
		return device.Facts{Path: name, Kind: device.KindStream}, nil
	} else if err == nil {
		f, err = hosts.Call(ctx, e.Conn, hosts.OpInspectDevice, path.Clean(name))
	}
	if err != nil && e.Conn.Local() { // remote hosts add their name
		err = fmt.Errorf("local: %w", err)
	}
	return f, err
}

// checkStreams refuses options that a standard stream does not support.
func (d *deviceJob) checkStreams() error {
	if !d.hasStream() {
		return nil
	}
	switch {
	case isStandard(d.req.Source) && isStandard(d.req.Target):
		return fault.Usagef("use cat", "source and target are both standard streams")
	case d.req.Compare, d.req.Options.Delta, d.req.SkipErrors:
		return fault.Usagef("name devices or image files", "{{verify-only}}, {{delta}} and {{skip-errors}} require two devices, not a stream")
	}
	return nil
}

// checkCopy inspects the target's state and collects the problems of the copy.
func (d *deviceJob) checkCopy(ctx context.Context) error {
	if isStandard(d.req.Target) {
		d.report.Problems = append(d.report.Problems, d.task.CheckSource()...)
		return nil
	}
	var err error
	if !d.hasStream() { // a stream has no stored state
		d.state, err = hosts.Call(ctx, d.ends.Target.Conn, hosts.OpDeviceState, d.task)
	}
	if o := &d.task.Options; err == nil && d.state.Digest != "" && d.req.Digest == "" && !d.req.NoResume && !o.Delta && !o.NoVerify {
		o.Quick = d.state.Digest == device.XXH3
		d.report.Digest = o.Digest()
		d.state, err = hosts.Call(ctx, d.ends.Target.Conn, hosts.OpDeviceState, d.task)
	}
	if err != nil {
		return err
	}
	if !d.req.NoResume {
		d.report.Resumable, d.report.Unusable = uint64(d.state.Stored), d.state.Unusable
	}
	d.report.Problems = append(append(d.report.Problems, d.task.CheckSource()...), d.task.CheckTarget(d.state)...)
	return nil
}

func (d *deviceJob) hasStream() bool { return isStandard(d.req.Source) || isStandard(d.req.Target) }

func isStandard(e endpoint.Endpoint) bool { return e.Local() && e.Name == device.Standard }

// NotAPath returns the usage error for an endpoint that must be a path.
func NotAPath(e endpoint.Endpoint) error {
	path := "./" + e.Name
	if !e.Local() {
		path = "[HOST:]/PATH"
	}
	return fault.Usagef("write a path, such as "+shellquote.Join(path)+"; to send a dataset, use zxfer send", "%q is not a path to a device or image file", e)
}

// admit returns an error for problems at fail level, nil if there are none.
func (d *deviceJob) admit() error {
	return finding.Refusal(slices.Concat(finding.Failed(d.report.Problems), preflight.Blocking(d.report.Findings, d.req.SkipChecks)))
}

// compare hashes both devices concurrently.
func (d *deviceJob) compare(ctx context.Context) error {
	size := int64(0)
	if d.task.Source.Size > 0 && !d.task.Target.IsFile() && d.task.Target.Size > d.task.Source.Size {
		size = d.task.Source.Size
		d.rep.Log(fmt.Sprintf("%s is larger: zxfer compares its first %d bytes", d.req.Target, size))
	}
	onSource, onTarget := connect.Watch(d.report.Size, func(p connect.Progress) { d.rep.Progress(1, p) })
	d.rep.DeviceStarted(d.report, 0)
	var a, b device.Digest
	g, gctx := errgroup.WithContext(ctx)
	digest := func(e *ends.End, f device.Facts, into *device.Digest, progress func(transfer.Progress)) {
		g.Go(func() (err error) {
			*into, err = hosts.Watch(gctx, e.Conn, hosts.OpDigestDevice, device.DigestQuery{Device: f, Size: size, Options: d.task.Options}, progress)
			return err
		})
	}
	if d.sourceDigest != nil {
		g.Go(func() (err error) { a, err = d.sourceDigest(gctx, onSource); return err })
	} else {
		digest(&d.ends.Source, d.task.Source, &a, onSource)
	}
	digest(&d.ends.Target, d.task.Target, &b, onTarget)
	if err := g.Wait(); err != nil {
		return err
	}
	r := &Result{Account: a.Result.Device, Tries: 1, Bottleneck: connect.Bottleneck{Stages: a.Result.Stages},
		Speed: connect.SpeedOf(d.report.Size, max(a.Result.Elapsed, b.Result.Elapsed).Seconds())}
	r.TargetDigest = b.Result.Device.SourceDigest
	d.report.Results = append(d.report.Results, r)
	equal := r.SourceDigest == r.TargetDigest
	d.report.Equal = &equal
	if equal {
		d.rep.DeviceFinished(d.report, r)
		return nil
	}
	r.Error = "the devices differ"
	d.rep.DeviceFinished(d.report, r)
	d.report.Differ = a.Differences(b)
	again := "to copy only the differences: zxfer dev {{delta}} {{overwrite}} {{confirm}} "
	if d.sourceDigest != nil {
		again = "copy everything again: zxfer dev {{overwrite}} {{confirm}} "
	}
	return fault.Failf(again+shellquote.Join(d.task.Target.Confirmation(), d.req.Source.String(), d.req.Target.String()),
		"%s and %s differ: %s %s and %s", d.req.Source, d.req.Target, strings.ToUpper(d.report.Digest), r.SourceDigest, r.TargetDigest)
}
