package dev

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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
	"zxfer/pkg/retry"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
	"zxfer/pkg/zfs"
)

// VolumeReport is the part of a Report about the snapshot of a volume that is copied.
type VolumeReport struct {
	Snapshot string `json:"snapshot"` // "tank/vm@b"
	GUID     uint64 `json:"guid,string"`
	// Base is the incremental source, "@a" or "#a", or "" for a full copy.
	Base      string `json:"incremental_source,omitempty"`
	Estimate  uint64 `json:"estimated_bytes,omitempty"` // of the stream
	Continues bool   `json:"continues,omitempty"`       // an interrupted copy is repeated
	UpToDate  bool   `json:"up_to_date,omitempty"`      // the target holds the snapshot
}

// Total returns the number of bytes that the copy transfers, or the size of the device.
func (r *Report) Total() uint64 {
	if r.Volume != nil && !r.Compare {
		return r.Volume.Estimate
	}
	return r.Size
}

// volumeJob copies a snapshot of a volume to a device or image file. If the target holds an earlier
// snapshot, according to its record, it copies only the changes.
type volumeJob struct {
	dev      *deviceJob
	dataset  string
	versions []zfs.Version
	write    device.VolumeTask // what the target does
	base     zfs.Version       // for write.Base, zero for a full copy
	volume   *VolumeReport
}

func (v *volumeJob) run(ctx context.Context) error {
	done, err := v.dev.prepare(ctx, &ends.Stages{
		Survey: func(ctx context.Context) error { return v.dev.inspecting(ctx, v.survey) },
		Moves:  func() bool { return !v.dev.req.Compare && !v.volume.UpToDate },
	})
	if done {
		return err
	}
	if !v.volume.UpToDate {
		err = v.dev.timed(ctx, v.send)
	}
	if err == nil && v.dev.req.Verify {
		err = v.verify(ctx)
	}
	return err
}

// verify compares the whole target with the snapshot.
func (v *volumeJob) verify(ctx context.Context) error {
	defer v.dev.rep.Activity("comparing " + v.dev.req.Target.String() + " with " + v.volume.Snapshot)()
	facts, err := hosts.Call(ctx, v.dev.ends.Target.Conn, hosts.OpInspectDevice, v.dev.task.Target.Path)
	if err != nil {
		return ends.Changed(err)
	}
	v.dev.task.Target = facts
	tries := len(v.dev.report.Results)
	err = ends.Changed(v.dev.compare(ctx))
	if all := v.dev.report.Results; tries > 0 && len(all) > tries { // the digests belong to the copy
		all[tries-1].SourceDigest, all[tries-1].TargetDigest = all[tries].SourceDigest, all[tries].TargetDigest
	}
	v.dev.report.Results = v.dev.report.Results[:tries]
	return err
}

// survey finds the snapshot on the source, inspects the target, chooses the transport and plans.
func (v *volumeJob) survey(ctx context.Context) error {
	dataset, snapshot, err := v.sourceName()
	if err != nil {
		return err
	}
	v.dataset = dataset
	var listing zfs.Listing
	var to device.Facts
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		if v.dev.ends.Source.Facts, err = v.dev.ends.Source.Conn.Facts(gctx); err == nil {
			listing, err = v.dev.ends.Source.Conn.List(gctx, hosts.ListQuery{Dataset: dataset, NoAncestors: true, Versions: true})
			err = ends.MissingPool(v.dev.ends.Source.Conn, dataset, err)
		}
		return err
	})
	g.Go(func() (err error) { to, err = inspect(gctx, &v.dev.ends.Target, v.dev.req.Target.Name); return })
	g.Go(func() error { v.dev.ends.Source.System = v.dev.ends.Source.Conn.System(gctx); return nil })
	g.Go(func() error { v.dev.ends.Target.System = v.dev.ends.Target.Conn.System(gctx); return nil })
	if err := g.Wait(); err != nil {
		return err
	}
	listing.DropSnapshots(zfs.HealPrefix)
	d := listing.Find(dataset)
	if d == nil {
		return ends.NoDataset(&v.dev.ends.Source, dataset)
	}
	at, err := v.chooseSnapshot(d, snapshot)
	if err != nil {
		return err
	}
	v.dev.req.Source.Name, v.versions = at.In(dataset), d.Versions
	v.dev.report.Source = v.dev.req.Source.String()
	if v.write.Snapshot, err = v.describe(ctx, at); err != nil {
		return err
	}
	v.write.Target, v.write.Allow, v.write.NoVerify = to, v.dev.req.Allow, v.dev.req.Options.NoVerify
	if err := v.plan(at); err != nil {
		return err
	}
	if err := v.prepareReport(d); err != nil || v.dev.req.Compare {
		return err
	}
	if err := v.dev.ends.Choose(v.dev.req.Settings, v.dev.rep.Log); err != nil {
		return err
	}
	if !v.volume.UpToDate {
		sizes, err := hosts.Estimate(ctx, v.dev.ends.Source.Conn, []zfs.SendSpec{v.spec()})
		if err != nil {
			return err
		}
		v.volume.Estimate = sizes[0]
	}
	v.dev.evaluate()
	return nil
}

// sourceName returns the dataset and the snapshot of the source; "" is the most recent snapshot.
func (v *volumeJob) sourceName() (dataset, snapshot string, err error) {
	if !v.dev.req.Target.Path() {
		return "", "", NotAPath(v.dev.req.Target)
	}
	dataset, snapshot, named := strings.Cut(v.dev.req.Source.Name, "@")
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return "", "", err
	}
	if named {
		err = zfs.CheckComponent(snapshot)
	}
	return dataset, snapshot, err
}

func (v *volumeJob) chooseSnapshot(d *zfs.Dataset, name string) (zfs.Version, error) {
	if d.Type != zfs.Volume {
		return zfs.Version{}, fault.Refusef("name a dataset of the target: [HOST:]POOL/NAME", "%s is a %s: only a volume can be copied to a device or image file", v.dev.req.Source, d.Type)
	}
	if name == "" {
		latest, ok := d.Latest()
		if !ok {
			return latest, fault.Refusef("take one: "+v.dev.ends.Source.Conn.Command("zfs", "snapshot", d.Name+"@NAME"), "%s has no snapshot", v.dev.req.Source)
		}
		return latest, nil
	}
	all := d.Snapshots()
	i := slices.IndexFunc(all, func(s zfs.Version) bool { return s.Name == name })
	if i < 0 {
		return zfs.Version{}, fault.Refusef("list them: "+v.dev.ends.Source.Conn.Command("zfs", "list", "-t", "snapshot", d.Name), "%s does not exist", v.dev.req.Source)
	}
	return all[i], nil
}

// describe queries the size of the volume in a snapshot, which may have changed since.
func (v *volumeJob) describe(ctx context.Context, at zfs.Version) (device.VolumeSnapshot, error) {
	s := device.VolumeSnapshot{Dataset: v.dataset, Name: at.Name, GUID: at.GUID}
	found, err := hosts.Call(ctx, v.dev.ends.Source.Conn, hosts.OpProperties, hosts.PropertyQuery{Names: []string{s.String(), v.dataset}, Properties: []string{"volsize", "volblocksize"}})
	if err != nil {
		return s, err
	}
	number := func(of, name string, most int64) int64 {
		value := found[of][name].Value
		n, nerr := strconv.ParseInt(value, 10, 64)
		if err == nil && (nerr != nil || n <= 0 || n > most || n%512 != 0) {
			err = fmt.Errorf("%s: %s has the %s %q", v.dev.ends.Source.Conn.Label(), of, name, value)
		}
		return n
	}
	s.Size = number(s.String(), "volsize", 1<<50)
	s.Block = int(number(v.dataset, "volblocksize", 16<<20))
	return s, err
}

// plan chooses the incremental source: the snapshot that the target holds.
func (v *volumeJob) plan(at zfs.Version) error {
	v.write.Base, v.base = device.VolumeSnapshot{}, zfs.Version{}
	v.volume = &VolumeReport{Snapshot: v.write.Snapshot.String(), GUID: at.GUID}
	v.dev.report.Volume = v.volume
	c := v.write.Target.Volume
	if v.dev.req.Compare || v.dev.req.Allow.Overwrite || c == nil || c.Held.GUID == 0 {
		v.volume.Continues = v.write.Interrupted()
		return nil // in full
	}
	// CheckTarget refuses a changed one.
	v.write.Base = c.Held
	if c.Held.GUID == at.GUID && c.Applying.GUID == 0 {
		v.volume.UpToDate = true
		return nil
	}
	if c.Applying.GUID != 0 && c.Applying.GUID != at.GUID {
		return fault.Refusef("complete it first: zxfer send "+shellquote.Join(endpoint.Endpoint{Host: v.dev.req.Source.Host, Name: c.Applying.String()}.String(), v.dev.req.Target.String())+"\n"+v.fullHint(),
			"%s holds %s", v.dev.req.Target, c)
	}
	for _, version := range v.versions {
		if version.GUID == c.Held.GUID && version.CreateTXG < at.CreateTXG {
			v.base = version
		}
	}
	if v.base.GUID == 0 {
		return fault.Refusef(v.fullHint(), "%s holds %s (GUID %d), which is no earlier snapshot or bookmark of %s", v.dev.req.Target, c.Held, c.Held.GUID, v.dataset)
	}
	v.volume.Base, v.volume.Continues = v.base.Short(), c.Applying.GUID != 0
	return nil
}

// fullHint is the command for a full copy.
func (v *volumeJob) fullHint() string {
	return "copy everything: zxfer dev {{overwrite}} {{confirm}} " +
		shellquote.Join(v.write.Target.Confirmation(), v.dev.req.Source.String(), v.dev.req.Target.String())
}

// prepareReport fills in the report and the part of the task that comparisons use.
func (v *volumeJob) prepareReport(d *zfs.Dataset) error {
	from := v.write.SourceFacts()
	v.dev.task = device.Task{Source: from, Target: v.write.Target, Request: device.Request{Allow: v.dev.req.Allow}}
	v.dev.task.Options.Options = connect.Options(&v.dev.req.Settings, time.Now())
	v.dev.task.Options.Quick = v.dev.req.Digest != device.BLAKE3
	if err := v.dev.task.SetDefaults(); err != nil {
		return err
	}
	v.dev.report.From, v.dev.report.To, v.dev.report.Size, v.dev.report.Block = &from, &v.write.Target, uint64(from.Size), v.write.Snapshot.Block
	if v.dev.req.Compare || v.dev.req.Verify {
		v.dev.report.Digest = v.dev.task.Options.Digest()
	}
	v.dev.sourceDigest = func(ctx context.Context, progress func(transfer.Progress)) (device.Digest, error) {
		return hosts.Watch(ctx, v.dev.ends.Source.Conn, hosts.OpDigestVolume, hosts.VolumeDigestQuery{Snapshot: v.write.Snapshot, Options: v.dev.task.Options}, progress)
	}
	if d.Encrypted() && !d.KeyLoaded() {
		return fault.Refusef("load it: "+v.dev.ends.Source.Conn.At().Prompt("zfs", "load-key", "-r", d.Name), "%s: the key of %s is not loaded, and ZFS can read its data only with the key", v.dev.ends.Source.Conn.Label(), d.Name)
	}
	if v.dev.req.Compare {
		if v.write.Target.Kind == device.KindMissing {
			return fault.Refusef("check the name", "%s does not exist", v.dev.req.Target)
		}
		return nil
	}
	if d.Encrypted() && !v.dev.req.Decrypt {
		return fault.Refusef("permit it: {{decrypt}}\nto keep the encryption, send to a dataset: [HOST:]POOL/NAME",
			"%s is encrypted, but its copy on a device or in an image file would not be", v.dev.req.Source)
	}
	v.dev.report.Problems = append(v.dev.report.Problems, v.write.CheckTarget()...)
	if d.Encrypted() {
		v.dev.report.Problems = append(v.dev.report.Problems, finding.Finding{ID: "source-encrypted", Severity: finding.Warn,
			Summary: v.dev.req.Source.String() + " is encrypted, but its copy is not"})
	}
	return nil
}

// spec returns the stream to send: plain blocks of at most 128 KiB.
func (v *volumeJob) spec() zfs.SendSpec {
	s := zfs.SendSpec{Dataset: v.dataset, To: v.write.Snapshot.Name}
	if v.base.GUID != 0 {
		s.From = v.base.Short()
	}
	return s
}

// send copies the snapshot and retries after interruptions. Every try starts again.
func (v *volumeJob) send(ctx context.Context) error {
	l := ends.NewLoop(fmt.Sprintf("%s -> %s", v.volume.Snapshot, v.dev.req.Target), v.dev.req.Retries, v.dev.rep.Log)
	l.Try = v.try
	l.Progress = func(ctx context.Context) (bool, error) { return false, v.inspect(ctx) }
	l.Retryable = v.dev.retryable
	return l.Run(ctx)
}

// inspect plans again for a retry: the target must be the same device, and may hold the snapshot by
// now.
func (v *volumeJob) inspect(ctx context.Context) error {
	now, err := hosts.Call(ctx, v.dev.ends.Target.Conn, hosts.OpInspectDevice, v.write.Target.Path)
	switch {
	case err != nil:
		return err
	case !now.Same(v.write.Target):
		return &retry.Permanent{Err: fault.Failf("use a persistent name, such as one in /dev/disk/by-id", "%s: it is another device than at the start of the copy", v.dev.req.Target)}
	}
	c := now.Volume
	held := c != nil && c.Changed == "" && c.Applying.GUID == 0 && c.Held.GUID == v.write.Snapshot.GUID
	v.write.Target = now
	v.volume.UpToDate = held
	return nil
}

func (v *volumeJob) try(ctx context.Context, tries int) error {
	if v.volume.UpToDate {
		return nil // the previous try succeeded, but the answer was lost
	}
	options := connect.Options(&v.dev.req.Settings, time.Now())
	v.dev.rep.DeviceStarted(v.dev.report, 0)
	res, err := v.dev.ends.Search.Run(ctx,
		connect.From{Host: v.dev.ends.Source.Conn, What: hosts.SendStream{Spec: v.spec(), Options: options}},
		connect.To{Host: v.dev.ends.Target.Conn, What: hosts.WriteVolume{Volume: v.write, Options: options}},
		connect.Count{Total: v.volume.Estimate}, func(p connect.Progress) { v.dev.rep.Progress(1, p) })
	r := &Result{Wire: res.Wire, WireBytes: max(res.Sent.WireBytes, res.Received.WireBytes), Bottleneck: res.Bottleneck, Tries: tries + 1}
	if a := res.Received.Device; a != nil {
		r.Account = *a
	}
	r.Size, r.Block = v.write.Snapshot.Size, v.write.Snapshot.Block
	r.Speed = connect.SpeedOf(uint64(max(0, r.Data)), res.Seconds)
	if err != nil {
		r.Error = err.Error()
	}
	v.dev.report.Results = append(v.dev.report.Results, r)
	v.dev.rep.DeviceFinished(v.dev.report, r)
	return err
}
