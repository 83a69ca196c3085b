package doctor

import (
	"context"
	"errors"

	"zxfer/pkg/hosts"
	"zxfer/pkg/job/measure"
	"zxfer/pkg/probe"
	"zxfer/pkg/zfs"
)

// onPaths reports whether one end is a path that `zxfer send` does not accept: a device, or a
// file or directory outside ZFS. Then there is nothing to plan, only to measure.
func (d *doctor) onPaths(ctx context.Context) (bool, error) {
	src, dst := d.req.Send.Source, d.req.Send.Target
	if dst.Path() {
		return true, nil
	}
	if !src.Path() {
		return false, nil
	}
	_, err := hosts.Call(ctx, d.ends.Source.Conn, hosts.OpDatasetOf, src.Name)
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) || errors.Is(err, &zfs.Error{Kind: zfs.NoZFS}) {
		return true, nil
	}
	return false, err
}

// measurePaths adds reading at the source and writing at the target.
func (d *doctor) measurePaths(ctx context.Context, m *measure.Measurer, all *measure.Rounds) error {
	read, write := d.req.Send.Source, d.req.Send.Target
	reader := &d.ends.Source
	if !d.req.Planned { // a single path is both source and target
		read, reader = write, &d.ends.Target
	}
	r, err := d.readRequest(ctx, read.Name)
	if err != nil {
		return err
	}
	w, err := d.writeRequest(ctx, write.Name)
	if err != nil {
		return err
	}
	reads, writes := r.ID != "" && d.req.wants(r.ID), w.ID != "" && d.req.wants(w.ID)
	switch {
	case reads && writes && reader != &d.ends.Target:
		m.AddPair(all, m.OnHost(reader, r), m.OnHost(&d.ends.Target, w))
		return nil
	case reads:
		all.Add(m.OnHost(reader, r))
	}
	if writes {
		all.Add(m.OnHost(&d.ends.Target, w))
	}
	return nil
}

// readRequest returns a measurement that reads a path, or the most recent snapshot of a dataset.
func (d *doctor) readRequest(ctx context.Context, name string) (probe.Request, error) {
	if name[0] == '/' {
		return probe.Request{ID: probe.PathRead, Dataset: name}, nil
	}
	dataset := d.req.Send.Plan.Source
	l, err := d.ends.Source.Conn.List(ctx, hosts.ListQuery{Dataset: dataset, Versions: true})
	if err != nil || len(l.Datasets) == 0 {
		return probe.Request{}, err
	}
	spec := zfs.SendSpec{Dataset: dataset, To: d.req.Send.Plan.Snapshot, Flags: zfs.StreamFlags{Raw: l.Datasets[0].Encrypted()}}
	if v, ok := l.Datasets[0].Latest(); ok && spec.To == "" {
		spec.To = v.Name
	}
	if spec.To == "" {
		return probe.Request{}, nil
	}
	return probe.Request{ID: probe.SourceRead, Send: &spec}, nil
}

// writeRequest returns a measurement that writes to a path, or to a scratch dataset below an
// existing dataset.
func (d *doctor) writeRequest(ctx context.Context, name string) (probe.Request, error) {
	if name[0] == '/' {
		return probe.Request{ID: probe.PathWrite, Dataset: name}, nil
	}
	l, err := d.ends.Target.Conn.List(ctx, hosts.ListQuery{Dataset: zfs.PoolOf(name)})
	if err != nil {
		return probe.Request{}, err
	}
	l.Ancestors = append(l.Ancestors, l.Datasets...)
	if at := measure.ScratchParent(&l); at != "" {
		return probe.Request{ID: probe.TargetWrite, Dataset: at}, nil
	}
	return probe.Request{}, nil
}
