// Package zfsmem is the ZFS of a host in memory: pools with datasets, snapshots,
// bookmarks, holds, clones and the state of interrupted receives. Its streams are
// such as zfs send makes. A site.Local acts on it as on real pools.
//
// It is for tests only. It encrypts and compresses nothing, mounts nothing, and
// an object of a dataset is all that is written to it.
package zfsmem

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"zxfer/pkg/zfs"
)

// Host is the ZFS of a host. Its methods may be called from several goroutines.
type Host struct {
	// Now is the host's clock, in seconds.
	Now func() int64
	// Old is an OpenZFS before 2.2, without zfs.ChangedProperty.
	Old bool
	// Around, where set, has each operation done that a Site asks for, or fails it:
	// those of package zfs by their names, OpHolds, and for a stream OpSend of its
	// last snapshot and its base as it begins, OpReceive of the dataset as it begins
	// and of each snapshot that has come. It may use the Host.
	Around func(ctx context.Context, op string, names []string, do func() error) error

	// Run is its directory of what lasts until it starts anew; needed for keys.
	Run string

	// Damaged is what its pools' lists of errors tell. A corrective stream into a
	// dataset takes off, by the next scrub, what of it Heals, if set, says of the
	// stream's base, 0 for none.
	Damaged zfs.Damage
	Heals   func(t zfs.Damaged, base uint64) bool

	mu       sync.Mutex
	txg      uint64
	guid     uint64
	datasets map[string]*zfs.Dataset
	tags     map[string][]string // of holds, by pool and the snapshot's GUID
	// content is what snapshots hold, by GUID: an increment is what comes after
	// that of its base. head is the same of datasets by name.
	content map[uint64][]write
	head    map[string][]write
	partial map[string]*partial          // what interrupted receives left, by dataset
	files   map[string]string            // directories, by what has their files
	marks   map[string]map[string]string // properties of snapshots, by their names
	late    map[string]int               // bytes that "written" lacks until a Sync, by dataset
	healed  map[string]bool              // what is damaged no more, by how it is shown
}

// OpHolds is the listing of holds, as Around is told of it.
const OpHolds = "holds"

// do does an operation.
func (h *Host) do(ctx context.Context, op string, names []string, f func() error) error {
	locked := func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		return f()
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if h.Around == nil {
		return locked()
	}
	return h.Around(ctx, op, names, locked)
}

// ask does an operation that has an answer.
func ask[T any](ctx context.Context, h *Host, op string, names []string, f func() (T, error)) (answer T, err error) {
	err = h.do(ctx, op, names, func() error {
		answer, err = f()
		return err
	})
	return answer, err
}

// write is a block that was written.
type write struct {
	at   uint64
	data []byte
}

// New returns a host with datasets, pools among them.
func New(datasets ...string) *Host {
	h := &Host{Now: func() int64 { return time.Now().Unix() }, datasets: map[string]*zfs.Dataset{}, tags: map[string][]string{}, marks: map[string]map[string]string{},
		content: map[uint64][]write{}, head: map[string][]write{}, partial: map[string]*partial{}}
	for _, name := range datasets {
		h.Create(name, nil)
	}
	return h
}

// Create makes a dataset with properties, a filesystem unless its type is one of
// them, and what is missing above it.
func (h *Host) Create(name string, properties map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.create(name, zfs.Filesystem, properties)
}

func (h *Host) create(name string, typ zfs.Type, properties map[string]string) *zfs.Dataset {
	if above := zfs.ParentOf(name); above != "" && h.datasets[above] == nil {
		h.create(above, zfs.Filesystem, nil)
	}
	h.guid++
	typ = cmp.Or(zfs.Type(properties["type"]), typ)
	d := &zfs.Dataset{Name: name, Type: typ, GUID: h.guid, Properties: map[string]zfs.Property{}}
	for p, v := range map[string]string{
		"type": string(typ), "guid": strconv.FormatUint(d.GUID, 10), "written": "0", "used": "1", "available": strconv.Itoa(1 << 40),
		"origin": "-", "encryption": "off", "encryptionroot": "-", "receive_resume_token": "-", zfs.ChangedProperty: "-",
	} {
		d.Properties[p] = zfs.Property{Value: v, Source: "-"}
	}
	for p, v := range properties {
		d.Properties[p] = zfs.Property{Value: v, Source: "local"}
	}
	h.datasets[name] = d
	return d
}

// Set sets a property of a dataset.
func (h *Host) Set(name, property, value string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.datasets[name].Properties[property] = zfs.Property{Value: value, Source: "local"}
}

func set(d *zfs.Dataset, property, value string) {
	d.Properties[property] = zfs.Property{Value: value, Source: "-"}
}

// Edit has the datasets, by name, changed as nothing else here does.
func (h *Host) Edit(change func(datasets map[string]*zfs.Dataset)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.datasets)
}

// Get returns a property of a dataset, "" where either is not there.
func (h *Host) Get(name, property string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.datasets[name]; d != nil {
		return d.Properties[property].Value
	}
	return ""
}

// block is the most that is written at once, in bytes.
const block = 128 << 10

// Write adds data to a dataset.
func (h *Host) Write(name string, data []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for b := range slices.Chunk(data, block) {
		at := uint64(len(h.head[name])) * block
		h.head[name] = append(h.head[name], write{at, b})
	}
	set(h.datasets[name], "written", strconv.Itoa(len(data)))
}

// WriteLate adds data to a dataset of which "written" tells only after a Sync.
func (h *Host) WriteLate(name string, data []byte) {
	before := h.Get(name, "written")
	h.Write(name, data)
	h.mu.Lock()
	defer h.mu.Unlock()
	set(h.datasets[name], "written", before)
	if h.late == nil {
		h.late = map[string]int{}
	}
	h.late[name] += len(data)
}

// Copy makes a dataset that has snapshots of another, as a stream of them leaves it.
func (h *Host) Copy(dataset, to string, snapshots ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.create(to, h.datasets[dataset].Type, nil)
	for _, name := range snapshots {
		_, i := h.find(dataset + "@" + name)
		v := h.datasets[dataset].Versions[i]
		h.head[to] = h.content[v.GUID]
		h.add(d, zfs.Version{Kind: v.Kind, Name: v.Name, GUID: v.GUID})
	}
}

// Clone makes a dataset of a snapshot.
func (h *Host) Clone(snapshot, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	of, i := h.find(snapshot)
	h.clone(of.Versions[i], snapshot, h.create(name, of.Type, nil))
}

func (h *Host) clone(of zfs.Version, origin string, d *zfs.Dataset) {
	set(d, "origin", origin)
	h.head[d.Name] = slices.Clip(h.content[of.GUID])
}

// Remove destroys a dataset and all below it.
func (h *Host) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(name)
}

func (h *Host) remove(name string) {
	for _, n := range h.below(name) {
		delete(h.datasets, n)
		delete(h.head, n)
		delete(h.partial, n)
	}
}

// Versions are the snapshots and bookmarks of a dataset, nil where it is not there.
func (h *Host) Versions(name string) []zfs.Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.datasets[name]; d != nil {
		return slices.Clone(d.Versions)
	}
	return nil
}

// find returns the dataset and the place of a version in it, -1 for none.
func (h *Host) find(full string) (*zfs.Dataset, int) {
	name, v, err := zfs.ParseVersion(full)
	d := h.datasets[name]
	if err != nil || d == nil {
		return nil, -1
	}
	return d, slices.IndexFunc(d.Versions, func(have zfs.Version) bool { return have.Kind == v.Kind && have.Name == v.Name })
}

// add makes a version. GUID 0 is a new one.
func (h *Host) add(d *zfs.Dataset, v zfs.Version) {
	h.txg++
	if v.GUID == 0 {
		h.guid++
		v.GUID = h.guid
	}
	if v.CreateTXG == 0 {
		v.CreateTXG = h.txg
	}
	d.Versions = append(d.Versions, v)
	if n := len(d.Versions); n > 1 && v.CreateTXG <= d.Versions[n-2].CreateTXG {
		zfs.SortVersions(d.Versions)
	}
	if v.Kind == zfs.Snapshot {
		h.content[v.GUID] = slices.Clip(h.head[d.Name])
		set(d, "written", "0")
		h.changed(d)
	}
}

func (h *Host) changed(d *zfs.Dataset) {
	set(d, zfs.ChangedProperty, strconv.FormatInt(h.Now(), 10))
}

// key is what holds are on: the snapshot of a pool, whatever its name. Two copies of one
// have one GUID.
func key(d *zfs.Dataset, v zfs.Version) string {
	return fmt.Sprint(zfs.PoolOf(d.Name), v.GUID, v.CreateTXG)
}

// busy tells whether a snapshot is held or has clones.
func (h *Host) busy(d *zfs.Dataset, v zfs.Version) bool {
	for other := range maps.Values(h.datasets) {
		if other.Get("origin") == v.In(d.Name) {
			return true
		}
	}
	return v.Kind == zfs.Snapshot && len(h.tags[key(d, v)]) > 0
}

func fail(kind zfs.Kind, op, subject string) error {
	hint := ""
	if kind == zfs.Busy && op == zfs.OpDestroy {
		hint = "zfs holds " + subject
	}
	return &zfs.Error{Kind: kind, Op: op, Subject: subject, Detail: string(kind), Hint: hint}
}
