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
	"sync"
	"time"

	"zxfer/pkg/job"
	"zxfer/pkg/site"
	"zxfer/pkg/transfer"
	"zxfer/pkg/zfs"
)

// world is a host with two pools, src and dst, as far as replication sees
// them. snapshots_changed is what a guest with OpenZFS 2.3 showed it to be:
// changed by snapshots taken, received, renamed and destroyed, also where a
// promotion takes them away; not by bookmarks and holds, nor where a promotion
// brings them.
type world struct {
	site.Site // what a test does not expect to be called

	mu       sync.Mutex
	now      int64 // seconds, the host's clock
	txg      uint64
	guid     uint64
	old      bool             // OpenZFS before 2.2
	full     error            // of taking snapshots
	stuck    error            // of releasing holds
	deny     map[string]error // of placing holds, by pool
	datasets map[string]*zfs.Dataset
	holds    map[string][]string // tags by snapshot GUID and pool
	away     string              // what is below cannot be reached
	// cut, where not 0, is after how many snapshots of a stream its target is away.
	cut int
	// bad is why no snapshot can be taken of some datasets.
	bad map[string]error
	// gone is a dataset that is destroyed just before snapshots are taken.
	gone string
	// meanwhile is what happens, once, before the next listing.
	meanwhile func()
	// looked are the datasets whose snapshots were listed.
	looked []string
}

func newWorld() *world {
	w := &world{now: time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC).Unix(), datasets: map[string]*zfs.Dataset{}, holds: map[string][]string{}}
	for _, n := range []string{"src", "src/a", "dst"} {
		w.create(n)
	}
	return w
}

// create makes a dataset. The caller of this and what follows is alone, or
// holds mu.
func (w *world) create(name string) *zfs.Dataset {
	w.guid++
	d := &zfs.Dataset{Name: name, Type: zfs.Filesystem, GUID: w.guid, Properties: map[string]zfs.Property{}}
	w.datasets[name] = d
	set(d, "guid", strconv.FormatUint(w.guid, 10))
	set(d, "type", "filesystem")
	set(d, "written", "0")
	for _, p := range []string{"origin", "encryptionroot", "receive_resume_token", zfs.ChangedProperty} {
		set(d, p, "-")
	}
	return d
}

func set(d *zfs.Dataset, property, value string) {
	d.Properties[property] = zfs.Property{Value: value, Source: "-"}
}

func (w *world) changed(d *zfs.Dataset) { set(d, zfs.ChangedProperty, strconv.FormatInt(w.now, 10)) }

func (w *world) add(d *zfs.Dataset, kind zfs.VersionKind, name string, guid uint64) {
	w.txg++
	d.Versions = append(d.Versions, zfs.Version{Kind: kind, Name: name, GUID: guid, CreateTXG: w.txg})
	if kind == zfs.Snapshot {
		w.changed(d)
		set(d, "written", "0")
	}
}

func (w *world) snapshot(name, snap string) {
	d := w.datasets[name]
	if d == nil || hasSnapshot(d, snap) {
		return
	}
	w.guid++
	w.add(d, zfs.Snapshot, snap, w.guid)
}

// find returns the dataset and the place of a snapshot or bookmark in it.
func (w *world) find(full string) (*zfs.Dataset, int) {
	name, v, err := zfs.ParseVersion(full)
	d := w.datasets[name]
	if err != nil || d == nil {
		return nil, -1
	}
	return d, slices.IndexFunc(d.Versions, func(have zfs.Version) bool { return have.Kind == v.Kind && have.Name == v.Name })
}

func holdKey(d *zfs.Dataset, v zfs.Version) string { return fmt.Sprint(zfs.PoolOf(d.Name), v.GUID) }

// busy tells whether a snapshot is held or has clones.
func (w *world) busy(d *zfs.Dataset, v zfs.Version) bool {
	for _, o := range w.datasets {
		if o.Get("origin") == v.In(d.Name) {
			return true
		}
	}
	return v.Kind == zfs.Snapshot && len(w.holds[holdKey(d, v)]) > 0
}

func (w *world) destroy(full string) error {
	d, i := w.find(full)
	if i < 0 {
		return nil
	}
	if v := d.Versions[i]; w.busy(d, v) {
		return &zfs.Error{Kind: zfs.Busy, Op: zfs.OpDestroy, Subject: full}
	} else if v.Kind == zfs.Snapshot {
		w.changed(d)
	}
	d.Versions = slices.Delete(d.Versions, i, i+1)
	return nil
}

// remove destroys a dataset with all that is below it and all its snapshots.
func (w *world) remove(name string) {
	for n := range w.datasets {
		if n == name || strings.HasPrefix(n, name+"/") {
			delete(w.datasets, n)
		}
	}
}

// promote moves the origin, and what is older, from its dataset to the clone.
func (w *world) promote(name string) {
	clone := w.datasets[name]
	if clone == nil {
		return
	}
	of, at := w.find(clone.Get("origin"))
	if at < 0 {
		return
	}
	origin := of.Versions[at]
	var moved, left []zfs.Version
	for _, v := range of.Versions {
		if v.Kind == zfs.Snapshot && v.CreateTXG <= origin.CreateTXG {
			moved = append(moved, v)
			for _, o := range w.datasets {
				if o.Get("origin") == v.In(of.Name) {
					set(o, "origin", v.In(clone.Name))
				}
			}
		} else {
			left = append(left, v)
		}
	}
	before := of.Get("origin")
	of.Versions, clone.Versions = left, append(moved, clone.Versions...)
	zfs.SortVersions(clone.Versions)
	w.changed(of)
	set(of, "origin", origin.In(clone.Name))
	set(clone, "origin", cmp.Or(before, "-"))
}

// state is all that a run may have changed, but for the order of what it did
// at once: createtxg is left out.
func (w *world) state() map[string][]string {
	out := map[string][]string{}
	for _, d := range w.datasets {
		all := []string{}
		for _, v := range d.Versions {
			all = append(all, fmt.Sprint(v.Short(), " ", v.GUID, " ", w.holds[holdKey(d, v)]))
		}
		slices.Sort(all)
		out[d.Name] = all
	}
	return out
}

func copyOf(d *zfs.Dataset, versions bool) *zfs.Dataset {
	c := *d
	c.Properties, c.Versions = maps.Clone(d.Properties), nil
	if versions {
		c.Versions = slices.Clone(d.Versions)
		zfs.SortVersions(c.Versions)
	}
	return &c
}

// The Site.

func (w *world) Open(context.Context, string) (site.Site, error) { return w, nil }
func (w *world) Relay(context.Context, string, string) (string, error) {
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
func (w *world) Estimate(_ context.Context, s []zfs.SendSpec) ([]uint64, error) {
	return make([]uint64, len(s)), nil
}

// reach fails where a dataset is on a host that is away.
func (w *world) reach(dataset string) error {
	if w.away != "" && (dataset == w.away || strings.HasPrefix(dataset, w.away+"/")) {
		return fmt.Errorf("%w: no route to host", site.ErrLost)
	}
	return nil
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
	l := zfs.Listing{Root: q.Dataset, Began: w.now}
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
func (w *world) Transfer(_ context.Context, t site.Task, _ func(transfer.Progress)) (transfer.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fail := func(kind zfs.Kind) (transfer.Result, error) {
		return transfer.Result{}, &zfs.Error{Kind: kind, Op: zfs.OpReceive, Subject: t.Receive.Target}
	}
	if err := w.reach(t.Receive.Target); err != nil {
		return transfer.Result{}, err
	}
	from, to := w.datasets[t.Send.Dataset], w.datasets[t.Receive.Target]
	if from == nil {
		return fail(zfs.NotFound)
	}
	switch {
	case t.Send.From == "" || t.Receive.Origin != "":
		if to != nil || w.datasets[zfs.ParentOf(t.Receive.Target)] == nil {
			return fail(zfs.Modified)
		}
		to = w.create(t.Receive.Target)
		if t.Receive.Origin != "" {
			set(to, "origin", t.Receive.Origin)
		}
	case to == nil:
		return fail(zfs.NoBase)
	default:
		_, i := w.find(t.Send.Dataset + t.Send.From)
		if latest, ok := to.Latest(); i < 0 || !ok || latest.GUID != from.Versions[i].GUID {
			return fail(zfs.NoBase)
		}
	}
	for n, name := range append(slices.Clone(t.Send.Through), t.Send.To) {
		if w.cut > 0 && n == w.cut {
			w.away = t.Receive.Target
			return transfer.Result{}, w.reach(t.Receive.Target)
		}
		_, i := w.find(t.Send.Dataset + "@" + name)
		if i < 0 || hasSnapshot(to, name) {
			return fail(zfs.NoBase)
		}
		w.add(to, zfs.Snapshot, name, from.Versions[i].GUID)
	}
	return transfer.Result{}, nil
}

var _ job.Opener = (*world)(nil)
