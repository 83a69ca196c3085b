// Package zfsmem simulates the ZFS of a host in memory, for tests: pools with datasets, snapshots,
// bookmarks, holds, clones and partially received state. Its streams have the format of zfs send.
// A hosts.Local uses it like real pools.
//
//   - Host: the ZFS of one host.
//   - write: one block that was written to a dataset. A dataset has a single object.
//   - content: the writes that a snapshot holds. head: those that a dataset holds now.
//
// It does not encrypt, compress or mount.
package zfsmem

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"zxfer/pkg/zfs"
)

// Host is the ZFS of a host. Its methods are safe for concurrent use.
type Host struct {
	// Now returns the time of the host's clock, in seconds.
	Now func() int64
	// Old simulates an OpenZFS before 2.2, without zfs.ChangedProperty.
	Old bool
	// Around, if set, runs around each operation and can fail it. op is an operation of
	// package zfs or OpHolds. OpSend runs once per stream, with its last snapshot and its
	// incremental source. OpReceive runs when a receive starts, with the dataset, and after
	// each received snapshot. Around may use the Host.
	Around func(ctx context.Context, op string, names []string, do func() error) error

	// Allow is what "zfs allow" prints for every dataset.
	Allow string

	// Files is the directory of all snapshots and datasets without one of SetFiles; "" = they cannot be
	// mounted.
	Files string

	// Run is the runtime directory, which a reboot clears. Keys need it.
	Run string

	// Damaged lists the errors of all pools. After a corrective stream into a dataset, the
	// next scrub removes its errors. If Heals is set, it selects the errors, given the
	// stream's incremental source, 0 for none.
	Damaged zfs.Damage
	Heals   func(t zfs.DamagedObject, base uint64) bool

	mu       sync.Mutex
	txg      uint64
	guid     uint64
	datasets map[string]*zfs.Dataset
	tags     map[string][]string // hold tags by key
	// content holds the writes of snapshots by GUID. An incremental stream has the writes
	// after those of its incremental source. head holds the writes of datasets by name.
	content map[uint64][]write
	head    map[string][]write
	partial map[string]*partial          // partially received state, by dataset
	files   map[string]string            // directories, by snapshot or dataset
	marks   map[string]map[string]string // properties of snapshots, by name
	late    map[string]int               // bytes that "written" lacks until Sync, by dataset
	healed  map[string]bool              // healed errors, by zfs.DamagedObject.Shown
	disks   map[uint64]*disk             // pools that may be detached, by GUID
}

// OpHolds is the operation of Holds, for Around.
const OpHolds = "holds"

// do runs an operation through Around, with the lock held.
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

// query runs an operation that returns a value.
func query[T any](ctx context.Context, h *Host, op string, names []string, f func() (T, error)) (answer T, err error) {
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

// New returns a host with datasets. Pools are datasets, too.
func New(datasets ...string) *Host {
	h := &Host{Now: func() int64 { return time.Now().Unix() }, datasets: map[string]*zfs.Dataset{}, tags: map[string][]string{}, marks: map[string]map[string]string{},
		content: map[uint64][]write{}, head: map[string][]write{}, partial: map[string]*partial{}}
	for _, name := range datasets {
		h.Create(name, nil)
	}
	return h
}

// Create creates a dataset with properties and its missing ancestors. It is a filesystem
// unless properties have another type.
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

// Edit calls change with the datasets by name.
func (h *Host) Edit(change func(datasets map[string]*zfs.Dataset)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.datasets)
}

// AddSnapshots takes snapshots of a dataset in order. None of the names may exist.
func (h *Host) AddSnapshots(dataset string, names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range names {
		h.add(h.datasets[dataset], zfs.Version{Kind: zfs.Snapshot, Name: name})
	}
}

// Get returns a property of a dataset, "" if either does not exist.
func (h *Host) Get(name, property string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.datasets[name]; d != nil {
		return d.Properties[property].Value
	}
	return ""
}

// block is the largest size of a write, in bytes.
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

// WriteLate adds data to a dataset. "written" includes it only after a Sync.
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

// Copy creates a dataset with snapshots of another one, like a receive of their streams.
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

// Clone creates a clone of a snapshot.
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

// Remove destroys a dataset and its descendants.
func (h *Host) Remove(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(name)
}

func (h *Host) remove(name string) {
	for _, n := range h.subtree(name) {
		delete(h.datasets, n)
		delete(h.head, n)
		delete(h.partial, n)
	}
}

// Versions returns the versions of a dataset, nil if it does not exist.
func (h *Host) Versions(name string) []zfs.Version {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d := h.datasets[name]; d != nil {
		return slices.Clone(d.Versions)
	}
	return nil
}

// find returns the dataset of a version and the version's index, -1 if it does not exist.
func (h *Host) find(full string) (*zfs.Dataset, int) {
	name, v, err := zfs.ParseVersion(full)
	d := h.datasets[name]
	if err != nil || d == nil {
		return nil, -1
	}
	return d, slices.IndexFunc(d.Versions, func(have zfs.Version) bool { return have.Kind == v.Kind && have.Name == v.Name })
}

// add adds a version. GUID 0 requests a new GUID.
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

// key returns the key of tags: the pool and the snapshot, regardless of its name. Two copies
// of a snapshot have the same GUID.
func key(d *zfs.Dataset, v zfs.Version) string {
	return fmt.Sprint(zfs.PoolOf(d.Name), v.GUID, v.CreateTXG)
}

func fail(kind zfs.Kind, op, subject string) error {
	hint := ""
	if kind == zfs.Busy && op == zfs.OpDestroy {
		hint = "zfs holds " + subject
	}
	return &zfs.Error{Kind: kind, Op: op, Subject: subject, Detail: string(kind), Hint: hint}
}
