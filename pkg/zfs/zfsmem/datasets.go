package zfsmem

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// List returns the listing of a dataset.
func (h *Host) List(ctx context.Context, q zfs.ListQuery) (zfs.Listing, error) {
	return query(ctx, h, zfs.OpList, append([]string{q.Dataset}, q.Only...), func() (zfs.Listing, error) { return h.list(q) })
}

func (h *Host) list(q zfs.ListQuery) (zfs.Listing, error) {
	l := zfs.Listing{Root: q.Dataset, Started: h.Now()}
	for _, n := range append([]string{q.Dataset}, q.Only...) {
		if _, err := zfs.ParseDataset(n); err != nil {
			return l, err
		}
	}
	pool := zfs.PoolOf(q.Dataset)
	if h.datasets[pool] == nil {
		return l, fail(zfs.NotFound, zfs.OpList, pool)
	}
	if !q.NoAncestors {
		l.Pool = zfs.Pool{Name: pool, Properties: map[string]string{"health": "ONLINE"},
			Features: map[string]string{"lz4_compress": "active", "encryption": "active", "extensible_dataset": "active", "large_blocks": "enabled"}}
	}
	for _, name := range slices.Sorted(maps.Keys(h.datasets)) {
		in := name == q.Dataset || q.Recursive && strings.HasPrefix(name, q.Dataset+"/")
		if len(q.Only) > 0 {
			in = slices.Contains(q.Only, name)
		}
		switch {
		case in:
			l.Datasets = append(l.Datasets, h.listed(h.datasets[name], q))
		case !q.NoAncestors && strings.HasPrefix(q.Dataset, name+"/"):
			l.Ancestors = append(l.Ancestors, h.listed(h.datasets[name], zfs.ListQuery{}))
		}
	}
	if q.Brief {
		l.ShortenAncestors()
	}
	return l, nil
}

// listed returns a copy of a dataset with the properties and versions that q requests.
func (h *Host) listed(d *zfs.Dataset, q zfs.ListQuery) *zfs.Dataset {
	c := *d
	c.Properties, c.Versions, c.NewestOnly = maps.Clone(d.Properties), nil, q.Newest
	latest, any := d.Latest()
	switch {
	case q.Newest && any:
		c.Versions = []zfs.Version{latest}
	case q.Versions:
		c.Versions = slices.Clone(d.Versions)
	}
	asked := zfs.SurveyProperties()
	if q.Identity {
		asked = []string{"type", "guid"}
	} else if q.Changed && !q.Versions {
		asked = zfs.ChangeProperties()
	} else {
		asked = append(asked, zfs.LongnameProperty)
		if q.Changed {
			asked = append(asked, zfs.ChangedProperty)
		}
	}
	asked = append(asked, q.User...)
	maps.DeleteFunc(c.Properties, func(p string, _ zfs.Property) bool {
		return !slices.Contains(asked, p) || h.Old && p == zfs.ChangedProperty
	})
	return &c
}

// DatasetOf returns NotFound, because no dataset is mounted.
func (h *Host) DatasetOf(ctx context.Context, path string) (string, error) {
	return "", h.do(ctx, zfs.OpList, []string{path}, func() error { return fail(zfs.NotFound, zfs.OpList, path) })
}

// Properties returns properties of datasets and versions by name.
func (h *Host) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	return query(ctx, h, zfs.OpGet, names, func() (map[string]map[string]zfs.Property, error) { return h.properties(names, properties) })
}

func (h *Host) properties(names, properties []string) (map[string]map[string]zfs.Property, error) {
	if h.Old && slices.Contains(properties, zfs.ChangedProperty) {
		return nil, fail(zfs.NotSupported, zfs.OpGet, names[0])
	}
	clones := map[string][]string{}
	for _, c := range h.datasets {
		clones[c.Get("origin")] = append(clones[c.Get("origin")], c.Name)
	}
	out := map[string]map[string]zfs.Property{}
	for _, n := range names {
		var all map[string]zfs.Property
		if d, i := h.find(n); i >= 0 {
			v := d.Versions[i]
			all = map[string]zfs.Property{"clones": {Value: cmp.Or(strings.Join(clones[n], ","), "-"), Source: "-"}}
			for p, value := range h.marks[n] {
				all[p] = zfs.Property{Value: value, Source: "local"}
			}
			for p, n := range map[string]uint64{"guid": v.GUID, "createtxg": v.CreateTXG, "userrefs": uint64(len(h.tags[key(d, v)])), "creation": 1e9 + v.CreateTXG*3600} {
				all[p] = zfs.Property{Value: strconv.FormatUint(n, 10), Source: "-"}
			}
		} else if d := h.datasets[n]; d != nil {
			all = maps.Clone(d.Properties)
		} else {
			continue
		}
		maps.DeleteFunc(all, func(name string, p zfs.Property) bool {
			if len(properties) == 0 {
				return !p.Local()
			}
			return !slices.Contains(properties, name) && !slices.Contains(properties, "all")
		})
		out[n] = all
	}
	return out, nil
}

// Estimate returns the sizes of streams in bytes.
func (h *Host) Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error) {
	var names []string
	for _, s := range streams {
		names = append(names, namesOf(s)...)
	}
	return query(ctx, h, zfs.OpEstimate, names, func() ([]uint64, error) { return h.estimate(streams) })
}

func (h *Host) estimate(streams []zfs.SendSpec) (sizes []uint64, err error) {
	for _, s := range streams {
		all, err := h.streams(s)
		if err != nil {
			return nil, err
		}
		size := uint64(0)
		for _, one := range all {
			for _, w := range one.writes {
				size += uint64(len(w.data))
			}
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}

// Snapshot takes either all snapshots or none.
func (h *Host) Snapshot(ctx context.Context, snapshots []string) error {
	return h.do(ctx, zfs.OpSnapshot, snapshots, func() error { return h.snapshot(snapshots) })
}

func (h *Host) snapshot(snapshots []string) error {
	for _, n := range snapshots {
		dataset, _, err := zfs.ParseSnapshot(n)
		_, i := h.find(n)
		switch {
		case err != nil:
			return err
		case h.datasets[dataset] == nil:
			return fail(zfs.NotFound, zfs.OpSnapshot, n)
		case i >= 0:
			return fail(zfs.Exists, zfs.OpSnapshot, n)
		case h.datasets[dataset].Inconsistent():
			return fail(zfs.Busy, zfs.OpSnapshot, n)
		}
	}
	for _, n := range snapshots {
		dataset, name, _ := zfs.ParseSnapshot(n)
		h.add(h.datasets[dataset], zfs.Version{Kind: zfs.Snapshot, Name: name})
	}
	return nil
}

// Mark sets a property of snapshots.
func (h *Host) Mark(ctx context.Context, property, value string, snapshots []string) error {
	return h.do(ctx, zfs.OpSet, snapshots, func() error {
		for _, n := range snapshots {
			if _, i := h.find(n); i < 0 {
				return fail(zfs.NotFound, zfs.OpSet, n)
			}
		}
		for _, n := range snapshots {
			if h.marks[n] == nil {
				h.marks[n] = map[string]string{}
			}
			h.marks[n][property] = value
		}
		return nil
	})
}

// Hold places holds.
func (h *Host) Hold(ctx context.Context, tag string, snapshots []string) error {
	return h.do(ctx, zfs.OpHold, snapshots, func() error { return h.hold(tag, snapshots) })
}

func (h *Host) hold(tag string, snapshots []string) error {
	for _, n := range snapshots {
		if _, _, err := zfs.ParseSnapshot(n); err != nil {
			return err
		}
		if _, i := h.find(n); i < 0 {
			return fail(zfs.NotFound, zfs.OpHold, n)
		}
	}
	for _, n := range snapshots {
		d, i := h.find(n)
		if k := key(d, d.Versions[i]); !slices.Contains(h.tags[k], tag) {
			h.tags[k] = append(h.tags[k], tag)
		}
	}
	return nil
}

// Release removes holds.
func (h *Host) Release(ctx context.Context, tag string, snapshots []string) error {
	return h.do(ctx, zfs.OpRelease, snapshots, func() error { return h.release(tag, snapshots) })
}

func (h *Host) release(tag string, snapshots []string) error {
	for _, n := range snapshots {
		if d, i := h.find(n); i >= 0 {
			k := key(d, d.Versions[i])
			h.tags[k] = slices.DeleteFunc(h.tags[k], func(t string) bool { return t == tag })
		}
	}
	return nil
}

// Permitted evaluates Allow.
func (h *Host) Permitted(ctx context.Context, dataset, user string, groups []string) (zfs.Permitted, error) {
	return query(ctx, h, zfs.OpAllow, []string{dataset}, func() (zfs.Permitted, error) {
		return zfs.ParsePermitted(h.Allow, dataset, user, groups)
	})
}

// Holds returns the hold tags of each snapshot.
func (h *Host) Holds(ctx context.Context, snapshots []string) (map[string][]string, error) {
	return query(ctx, h, OpHolds, snapshots, func() (map[string][]string, error) { return h.holds(snapshots), nil })
}

func (h *Host) holds(snapshots []string) map[string][]string {
	out := map[string][]string{}
	for _, n := range snapshots {
		if d, i := h.find(n); i >= 0 && len(h.tags[key(d, d.Versions[i])]) > 0 {
			out[n] = slices.Clone(h.tags[key(d, d.Versions[i])])
		}
	}
	return out
}

// Bookmark makes bookmarks.
func (h *Host) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	names := slices.AppendSeq(slices.Sorted(maps.Keys(bookmarks)), maps.Values(bookmarks))
	return h.do(ctx, zfs.OpBookmark, names, func() error { return h.bookmark(bookmarks) })
}

func (h *Host) bookmark(bookmarks map[string]string) error {
	for mark, of := range bookmarks {
		_, name, err := zfs.ParseBookmark(mark)
		if err != nil {
			return err
		}
		d, i := h.find(of)
		if i < 0 {
			return fail(zfs.NotFound, zfs.OpBookmark, of)
		}
		v := d.Versions[i]
		v.Kind, v.Name = zfs.Bookmark, name
		if in, i := h.find(mark); i < 0 {
			h.add(d, v)
		} else if in.Versions[i].GUID != v.GUID {
			return fail(zfs.Exists, zfs.OpBookmark, mark)
		}
	}
	return nil
}

// Destroy destroys versions. If a snapshot is held or has clones, it returns an error for each
// such snapshot and destroys nothing.
func (h *Host) Destroy(ctx context.Context, versions []string) error {
	return h.do(ctx, zfs.OpDestroy, versions, func() error { return h.destroy(versions) })
}

func (h *Host) destroy(versions []string) error {
	if _, _, err := cli.GroupVersions(versions); err != nil {
		return err
	}
	have, origins := map[string]zfs.Version{}, map[string]bool{}
	of := map[string]*zfs.Dataset{}
	for _, n := range versions {
		name, _, _ := zfs.ParseVersion(n) // GroupVersions has parsed them
		if d := h.datasets[name]; d != nil && of[name] == nil {
			of[name] = d
			for _, v := range d.Versions {
				have[v.In(name)] = v
			}
		}
	}
	for _, c := range h.datasets {
		origins[c.Get("origin")] = true
	}
	var errs []error
	destroyed := map[string]bool{}
	for _, n := range versions {
		v, exists := have[n]
		if name, _, _ := zfs.ParseVersion(n); exists && v.Kind == zfs.Snapshot && (origins[n] || len(h.tags[key(of[name], v)]) > 0) {
			errs = append(errs, fail(zfs.Busy, zfs.OpDestroy, n))
		}
		destroyed[n] = exists
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, d := range of {
		d.Versions = slices.DeleteFunc(d.Versions, func(v zfs.Version) bool {
			if !destroyed[v.In(d.Name)] {
				return false
			}
			if v.Kind == zfs.Snapshot {
				h.changed(d)
			}
			return true
		})
	}
	return nil
}

// CreateParents creates missing ancestors.
func (h *Host) CreateParents(ctx context.Context, dataset string) error {
	return h.do(ctx, zfs.OpCreate, []string{dataset}, func() error { return h.createParents(dataset) })
}

func (h *Host) createParents(dataset string) error {
	if h.datasets[zfs.PoolOf(dataset)] == nil {
		return fail(zfs.NotFound, zfs.OpCreate, dataset)
	}
	for i, c := range dataset {
		if above := dataset[:i]; c == '/' && h.datasets[above] == nil {
			h.create(above, zfs.Filesystem, map[string]string{"canmount": "off"})
		}
	}
	return nil
}

// DiscardPartial discards partially received state.
func (h *Host) DiscardPartial(ctx context.Context, dataset string) error {
	return h.do(ctx, zfs.OpDiscard, []string{dataset}, func() error { return h.discardPartial(dataset) })
}

func (h *Host) discardPartial(dataset string) error {
	d := h.datasets[dataset]
	if d == nil {
		return fail(zfs.NotFound, zfs.OpDiscard, dataset)
	}
	if d.Inconsistent() {
		h.remove(dataset)
	}
	delete(h.partial, dataset)
	set(d, "receive_resume_token", "-")
	return nil
}
