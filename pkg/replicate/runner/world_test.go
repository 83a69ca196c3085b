package runner

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"zxfer/pkg/site"
	"zxfer/pkg/zfs"
)

// world is a host with two pools, src and dst, as far as replication sees
// them. snapshots_changed is what a guest with OpenZFS 2.3 showed it to be:
// changed by snapshots taken, received, renamed and destroyed, also where a
// promotion takes them away; not by bookmarks and holds, nor where a promotion
// brings them.
type world struct {
	site.Full // what a test does not expect to be called

	mu       sync.Mutex
	now      int64 // seconds, the host's clock
	txg      uint64
	guid     uint64
	old      bool             // OpenZFS before 2.2
	full     error            // of taking snapshots
	stuck    error            // of releasing holds
	deny     map[string]error // of placing holds, by pool
	broken   error            // of every stream
	datasets map[string]*zfs.Dataset
	holds    map[string][]string // tags by snapshot GUID and pool
	away     string              // what is below cannot be reached
	// cut, where not 0, is after how many snapshots of a stream its target is away.
	cut int
	// lost is how often yet the connection is, by operation, before it is done.
	lost map[string]int
	// bad is why no snapshot can be taken of some datasets.
	bad map[string]error
	// gone is a dataset that is destroyed just before snapshots are taken.
	gone string
	// meanwhile is what happens, once, before the next listing.
	meanwhile func()
	// size is what streams of a dataset bring, by estimate; none is 0.
	size map[string]uint64
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

// encrypt makes a dataset an encrypted one, whose key is that of root.
func encrypt(d *zfs.Dataset, root string) {
	set(d, "encryption", "aes-256-gcm")
	set(d, "keystatus", "unavailable")
	set(d, "encryptionroot", root)
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
	if d == nil || slices.ContainsFunc(d.Versions, func(v zfs.Version) bool { return v.Kind == zfs.Snapshot && v.Name == snap }) {
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
