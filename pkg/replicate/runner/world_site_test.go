package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"zxfer/pkg/hosts"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// A world is the Site of its host, and reaches itself.

func (w *world) Open(context.Context, hosts.Line) (site.Site, error) { return w, nil }
func (w *world) Relay(context.Context, hosts.Line, string) (string, error) {
	return "", errors.ErrUnsupported
}
func (w *world) Name() string                                  { return "local" }
func (w *world) RTT() time.Duration                            { return 0 }
func (w *world) Close() error                                  { return nil }
func (w *world) HostFacts(context.Context) (site.Facts, error) { return site.Facts{Root: true}, nil }
func (w *world) Facts(context.Context) (site.Facts, error)     { return site.Facts{Root: true}, nil }
func (w *world) Capture(context.Context, bool) ([]byte, error) {
	return nil, errors.New("nothing is known of this host")
}
func (w *world) CreateParents(context.Context, string) error { return nil }
func (w *world) Estimate(_ context.Context, specs []zfs.SendSpec) ([]uint64, error) {
	var out []uint64
	for _, s := range specs {
		out = append(out, w.size[s.Dataset])
	}
	return out, nil
}

// reach fails where a dataset is on a host that is away.
func (w *world) reach(dataset string) error {
	if w.away != "" && (dataset == w.away || strings.HasPrefix(dataset, w.away+"/")) {
		return fmt.Errorf("%w: no route to host", site.ErrLost)
	}
	return nil
}

func (w *world) lose(operation string) error {
	if w.lost[operation] == 0 {
		return nil
	}
	w.lost[operation]--
	return site.ErrLost
}

func (w *world) happen() {
	if f := w.meanwhile; f != nil {
		w.meanwhile = nil
		f()
	}
}

func (w *world) List(_ context.Context, q site.ListQuery) (zfs.Listing, error) {
	w.happen()
	w.mu.Lock()
	defer w.mu.Unlock()
	l := zfs.Listing{Root: q.Dataset, Began: w.now, Pool: zfs.Pool{Name: zfs.PoolOf(q.Dataset), Features: map[string]string{"lz4_compress": "active", "encryption": "active"}}}
	if err := w.reach(q.Dataset); err != nil {
		return l, err
	}
	for _, name := range slices.Sorted(maps.Keys(w.datasets)) {
		in := name == q.Dataset || q.Recursive && strings.HasPrefix(name, q.Dataset+"/")
		if len(q.Only) > 0 {
			in = slices.Contains(q.Only, name)
		}
		switch {
		case in:
			d := copyOf(w.datasets[name], q.Versions)
			if q.Changed && !q.Versions {
				maps.DeleteFunc(d.Properties, func(p string, _ zfs.Property) bool { return !slices.Contains(zfs.ChangeProperties(), p) })
			}
			if w.old || !q.Changed {
				delete(d.Properties, zfs.ChangedProperty)
			}
			if q.Versions {
				w.looked = append(w.looked, name)
			}
			l.Datasets = append(l.Datasets, d)
		case strings.HasPrefix(q.Dataset, name+"/"):
			l.Ancestors = append(l.Ancestors, copyOf(w.datasets[name], false))
		}
	}
	return l, nil
}

func (w *world) Properties(_ context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.old && slices.Contains(properties, zfs.ChangedProperty) {
		return nil, &zfs.Error{Kind: zfs.NotSupported, Op: zfs.OpGet}
	}
	out := map[string]map[string]zfs.Property{}
	for _, n := range names {
		if d, i := w.find(n); i >= 0 {
			out[n] = map[string]zfs.Property{
				"guid":     {Value: strconv.FormatUint(d.Versions[i].GUID, 10)},
				"userrefs": {Value: strconv.Itoa(len(w.holds[holdKey(d, d.Versions[i])]))},
				"clones":   {Value: "-"}, // no test asks for them
				"creation": {Value: strconv.FormatUint(1e9+d.Versions[i].CreateTXG*3600, 10)},
			}
		} else if d := w.datasets[n]; d != nil {
			out[n] = maps.Clone(d.Properties)
		}
	}
	return out, nil
}

func (w *world) Snapshot(_ context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full != nil {
		return w.full
	}
	delete(w.datasets, w.gone)
	for _, n := range names { // all or nothing
		dataset, _, err := zfs.ParseSnapshot(n)
		if err != nil {
			return err
		}
		if w.datasets[dataset] == nil {
			return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpSnapshot, Subject: names[0]}
		}
		if err := w.bad[dataset]; err != nil {
			return err
		}
	}
	for _, n := range names {
		dataset, snap, _ := strings.Cut(n, "@")
		w.snapshot(dataset, snap)
	}
	return nil
}

func (w *world) Hold(_ context.Context, tag string, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.lose("hold"); err != nil {
		return err
	}
	for _, n := range names {
		d, i := w.find(n)
		if err := w.deny[zfs.PoolOf(n)]; err != nil {
			return err
		}
		if i < 0 {
			return &zfs.Error{Kind: zfs.NotFound, Op: zfs.OpHold, Subject: n}
		}
		if key := holdKey(d, d.Versions[i]); !slices.Contains(w.holds[key], tag) {
			w.holds[key] = append(w.holds[key], tag)
		}
	}
	return nil
}

func (w *world) Release(_ context.Context, tag string, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.lose("release"); err != nil {
		return err
	}
	if w.stuck != nil {
		return w.stuck
	}
	for _, n := range names {
		if d, i := w.find(n); i >= 0 {
			key := holdKey(d, d.Versions[i])
			w.holds[key] = slices.DeleteFunc(w.holds[key], func(t string) bool { return t == tag })
		}
	}
	return nil
}

func (w *world) Holds(_ context.Context, names []string) (map[string][]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string][]string{}
	for _, n := range names {
		if d, i := w.find(n); i >= 0 {
			out[n] = slices.Clone(w.holds[holdKey(d, d.Versions[i])])
		}
	}
	return out, nil
}

func (w *world) Bookmark(_ context.Context, marks map[string]string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.lose("bookmark"); err != nil {
		return err
	}
	for mark, of := range marks {
		_, name, _ := strings.Cut(mark, "#")
		if _, i := w.find(mark); i >= 0 {
			continue
		}
		if d, i := w.find(of); i >= 0 {
			v := d.Versions[i]
			v.Kind, v.Name = zfs.Bookmark, name
			d.Versions = append(d.Versions, v)
		}
	}
	return nil
}

func (w *world) Destroy(_ context.Context, names []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.lose("destroy"); err != nil {
		return err
	}
	var errs []error
	for _, n := range names { // all or nothing
		if d, i := w.find(n); i >= 0 && w.busy(d, d.Versions[i]) {
			errs = append(errs, &zfs.Error{Kind: zfs.Busy, Op: zfs.OpDestroy, Subject: n})
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, n := range names {
		errs = append(errs, w.destroy(n))
	}
	return errors.Join(errs...)
}

// Transfer brings the snapshots of a stream, or fails as zfs receive does.
func (w *world) Transfer(_ context.Context, t site.Task, _ func(transfer.Progress)) (site.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	send, receive := t.From.(site.SendStream).Spec, t.To.(site.ReceiveStream).Spec
	fail := func(kind zfs.Kind) (site.Result, error) {
		return site.Result{}, &zfs.Error{Kind: kind, Op: zfs.OpReceive, Subject: receive.Target}
	}
	if err := cmp.Or(w.broken, w.reach(receive.Target)); err != nil {
		return site.Result{}, err
	}
	from, to := w.datasets[send.Dataset], w.datasets[receive.Target]
	if from == nil {
		return fail(zfs.NotFound)
	}
	switch {
	case send.From == "" || receive.Origin != "":
		if to != nil || w.datasets[zfs.ParentOf(receive.Target)] == nil {
			return fail(zfs.Modified)
		}
		to = w.create(receive.Target)
		if send.Flags.Raw {
			encrypt(to, to.Name)
		}
		if receive.Origin != "" {
			set(to, "origin", receive.Origin)
		}
	case to == nil:
		return fail(zfs.NoBase)
	default:
		_, i := w.find(send.Dataset + send.From)
		if latest, ok := to.Latest(); i < 0 || !ok || latest.GUID != from.Versions[i].GUID {
			return fail(zfs.NoBase)
		}
	}
	for n, name := range append(slices.Clone(send.Through), send.To) {
		if w.cut > 0 && n == w.cut {
			w.away = receive.Target
			return site.Result{}, w.reach(receive.Target)
		}
		_, i := w.find(send.Dataset + "@" + name)
		if i < 0 || slices.ContainsFunc(to.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == name }) {
			return fail(zfs.NoBase)
		}
		w.add(to, zfs.Snapshot, name, from.Versions[i].GUID)
		set(to, "receive_resume_token", "-")
	}
	return site.Result{}, nil
}

var _ hosts.Opener = (*world)(nil)
