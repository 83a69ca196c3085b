// Package zfs describes OpenZFS 2.1 to 2.4: names, properties, argument lists of zfs(8) and
// zpool(8), parsers of their output, resume tokens, send streams and typed errors. It runs no
// command and opens no file: packages cli and lzc do.
//
//   - dataset: a filesystem or volume. A listing holds the datasets of one host.
//   - version: a snapshot or bookmark of a dataset, identified by its GUID.
//   - incremental source: the version that an incremental stream starts from.
//   - stream, package, record: see record.go.
//   - resume token: the position at which an interrupted stream can be resumed.
//   - carried property: a property whose value the other host chose.
//   - drill clone: a temporary clone for a restore test.
//   - diverged copy: a copy that was renamed because it no longer matches its source.
//   - orphan: a copy whose source dataset was deleted.
package zfs

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Type is the kind of a dataset that can be sent.
type Type string

// The dataset types, as zfs(8) spells them.
const (
	Filesystem Type = "filesystem"
	Volume     Type = "volume"
)

// VersionKind is the kind of a version: snapshot or bookmark.
type VersionKind string

// The kinds of versions; the value is the separator in a full name.
const (
	Snapshot VersionKind = "@"
	Bookmark VersionKind = "#"
)

// Version is a point in a dataset's history: a snapshot, or a bookmark of one. Two versions
// are the same point if and only if their GUIDs are equal, regardless of their names.
type Version struct {
	Kind      VersionKind `json:"kind"`
	Name      string      `json:"name"` // without dataset and separator
	GUID      uint64      `json:"guid,string"`
	CreateTXG uint64      `json:"createtxg,string"` // order of creation within one pool
	// Simulated reports that the version does not exist yet. Only plans set it.
	Simulated bool `json:"-"`
}

// Short returns the version without its dataset: "@daily" or "#daily".
func (v Version) Short() string { return string(v.Kind) + v.Name }

// In returns the full name of the version in a dataset: "tank/a@daily".
func (v Version) In(dataset string) string { return dataset + v.Short() }

// Property is a property value and its source, as zfs get prints them.
type Property struct {
	Value  string `json:"value"`  // in the format of zfs get -p; "-" for no value
	Source string `json:"source"` // local, default, received, temporary, "inherited from …", "-"
}

// Local reports whether the value was set on the dataset itself.
func (p Property) Local() bool { return p.Source == "local" }

// Dataset is a filesystem or volume with its versions.
type Dataset struct {
	Name       string              `json:"name"`
	Type       Type                `json:"type"`
	GUID       uint64              `json:"guid,string"`
	Properties map[string]Property `json:"properties"`
	Versions   []Version           `json:"versions"` // ascending CreateTXG, a bookmark before its snapshot
	// NewestOnly reports that Versions holds at most the most recent snapshot.
	NewestOnly bool `json:"newest_only,omitempty"`
}

// Get returns the value of a property, "" if it is unknown or "-".
func (d *Dataset) Get(name string) string {
	if v := d.Properties[name].Value; v != "-" {
		return v
	}
	return ""
}

// Encrypted reports whether the dataset is encrypted.
func (d *Dataset) Encrypted() bool {
	e := d.Get("encryption")
	return e != "" && e != "off"
}

// KeyLoaded reports whether the dataset's key is loaded.
func (d *Dataset) KeyLoaded() bool { return d.Get("keystatus") == "available" }

// ResumeToken returns the resume token of an interrupted receive, "" if there was none.
func (d *Dataset) ResumeToken() string { return d.Get("receive_resume_token") }

// Inconsistent reports whether the first receive into the dataset was interrupted. The dataset
// has no snapshot until that receive is resumed and completes.
func (d *Dataset) Inconsistent() bool { return d.Get("inconsistent") == "1" }

// Modified reports whether the dataset changed since its most recent snapshot.
func (d *Dataset) Modified() bool {
	written := d.Get("written")
	return written != "" && written != "0" && written != "-"
}

// SnapshotsChanged returns ChangedProperty in seconds since 1970, 0 if it is unknown.
func (d *Dataset) SnapshotsChanged() int64 {
	seconds, err := strconv.ParseInt(d.Get(ChangedProperty), 10, 64)
	if err != nil {
		return 0
	}
	return seconds
}

// Snapshots returns the dataset's snapshots in order of creation.
func (d *Dataset) Snapshots() []Version {
	var out []Version
	for _, v := range d.Versions {
		if v.Kind == Snapshot {
			out = append(out, v)
		}
	}
	return out
}

// DropSnapshots removes the snapshots whose names have the prefix.
func (l *Listing) DropSnapshots(prefix string) {
	for _, d := range l.Datasets {
		d.Versions = slices.DeleteFunc(d.Versions, func(v Version) bool { return v.Kind == Snapshot && strings.HasPrefix(v.Name, prefix) })
	}
}

// SnapshotOf returns the snapshot with the GUID.
func (d *Dataset) SnapshotOf(guid uint64) (Version, bool) {
	for _, v := range d.Versions {
		if v.Kind == Snapshot && v.GUID == guid {
			return v, true
		}
	}
	return Version{}, false
}

// SnapshotsByGUID returns an index of the snapshots, for many lookups.
func (d *Dataset) SnapshotsByGUID() map[uint64]Version {
	out := make(map[uint64]Version, len(d.Versions))
	for _, v := range d.Versions {
		if v.Kind == Snapshot {
			out[v.GUID] = v
		}
	}
	return out
}

// Latest returns the most recent snapshot.
func (d *Dataset) Latest() (Version, bool) {
	for i := len(d.Versions) - 1; i >= 0; i-- {
		if d.Versions[i].Kind == Snapshot {
			return d.Versions[i], true
		}
	}
	return Version{}, false
}

// Pool holds the properties and features of a pool.
type Pool struct {
	Name       string            `json:"name"`
	GUID       uint64            `json:"guid,string"`
	Properties map[string]string `json:"properties"` // size, free, health, readonly, ashift …; sizes in bytes
	Features   map[string]string `json:"features"`   // by name without "feature@": disabled, enabled or active
}

// HasFeature reports whether a pool feature is enabled or active.
func (p *Pool) HasFeature(name string) bool {
	s := p.Features[name]
	return s == "enabled" || s == "active"
}

// ListQuery selects what a listing contains.
type ListQuery struct {
	Dataset   string `json:"dataset"`
	Recursive bool   `json:"recursive,omitempty"` // includes descendants
	// Versions requests snapshots and bookmarks.
	Versions bool `json:"versions,omitempty"`
	// Newest requests only the most recent snapshot of each dataset, instead of Versions. This
	// is much faster if there are many snapshots.
	Newest bool `json:"newest,omitempty"`
	// NoAncestors omits the pool and the ancestors.
	NoAncestors bool `json:"alone,omitempty"`
	// Only lists the datasets to read instead of Dataset and its descendants. Each is Dataset
	// or a descendant.
	Only []string `json:"only,omitempty"`
	// Identity limits the properties of the datasets to type and guid.
	Identity bool `json:"identity,omitempty"`
	// Changed requests ChangedProperty, which is missing before OpenZFS 2.2. Without Versions,
	// it limits the properties to ChangeProperties.
	Changed bool `json:"changed,omitempty"`
	// User lists user properties to read in addition.
	User []string `json:"user,omitempty"`
	// Brief limits the properties of ancestors to AncestorProperties.
	Brief bool `json:"brief,omitempty"`
}

// CheckUser returns an error if User has a name that is not a user property.
func (q *ListQuery) CheckUser() error {
	for _, name := range q.User {
		if err := CheckProperty(name); err != nil {
			return err
		}
		if !UserProperty(name) {
			return invalidName(name, "not the name of a user property", `use a name with a ":"`)
		}
	}
	return nil
}

// Listing is the state of the datasets of one host, as one query found it.
type Listing struct {
	Root      string     `json:"root"`      // the dataset asked for
	Datasets  []*Dataset `json:"datasets"`  // Root and, if requested, its descendants, sorted by name; empty if Root does not exist
	Ancestors []*Dataset `json:"ancestors"` // existing ancestors of Root without versions, the pool first
	Pool      Pool       `json:"pool"`
	// Started is the time at which the query started, by the clock of that host, in seconds
	// since 1970.
	Started int64 `json:"began,omitempty"`
}

// ShortenAncestors limits the properties of the ancestors to AncestorProperties.
func (l *Listing) ShortenAncestors() {
	short := AncestorProperties()
	for _, d := range l.Ancestors {
		maps.DeleteFunc(d.Properties, func(p string, _ Property) bool { return !slices.Contains(short, p) })
	}
}

// ByName returns an index of the datasets and ancestors, for many lookups.
func (l *Listing) ByName() map[string]*Dataset {
	all := make(map[string]*Dataset, len(l.Ancestors)+len(l.Datasets))
	for _, d := range slices.Concat(l.Ancestors, l.Datasets) {
		all[d.Name] = d
	}
	return all
}

// SnapshotNames returns the full names of all snapshots.
func (l *Listing) SnapshotNames() (names []string) {
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			names = append(names, v.In(d.Name))
		}
	}
	return names
}

// Find returns the dataset with the name, nil if the listing has no such dataset.
func (l *Listing) Find(name string) *Dataset {
	for _, d := range l.Datasets {
		if d.Name == name {
			return d
		}
	}
	for _, d := range l.Ancestors {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// PoolOf returns the pool in the name of a dataset, snapshot or bookmark.
func PoolOf(name string) string {
	if i := strings.IndexAny(name, "/@#"); i >= 0 {
		return name[:i]
	}
	return name
}

// ParentOf returns the parent of a dataset, "" for a pool's root.
func ParentOf(dataset string) string {
	i := strings.LastIndexByte(dataset, '/')
	if i < 0 {
		return ""
	}
	return dataset[:i]
}

// StreamFlags are the options of zfs send that must be the same for all streams to a dataset.
type StreamFlags struct {
	Raw         bool `json:"raw,omitempty"`          // -w
	LargeBlocks bool `json:"large_blocks,omitempty"` // -L
	Embedded    bool `json:"embedded,omitempty"`     // -e
	Compressed  bool `json:"compressed,omitempty"`   // -c
}

// SendSpec describes a stream to send: either a stream from its start (Dataset, From, To) or
// the rest of an interrupted one (Token).
type SendSpec struct {
	Dataset string `json:"dataset"`
	// From is the incremental source: "" for a full stream, "@snap" or "#bookmark" of the same
	// dataset, or "pool/origin@snap" for a clone.
	From string `json:"from,omitempty"`
	// Through lists the intermediate snapshots that the stream includes (-I), in order. It is
	// empty for -i.
	Through []string    `json:"through,omitempty"`
	To      string      `json:"to"` // snapshot name without dataset and "@"
	Flags   StreamFlags `json:"flags"`
	Token   string      `json:"token,omitempty"` // resume token (-t); Dataset and To are then informational
}

// ReceiveSpec describes a stream to receive. A receive never mounts (-u). It is resumable (-s)
// unless the pool lacks ResumeFeature.
type ReceiveSpec struct {
	Target       string            `json:"target"`
	NotResumable bool              `json:"whole,omitempty"`    // no -s: the pool lacks ResumeFeature
	Rollback     bool              `json:"rollback,omitempty"` // -F: destroy data newer than the incremental source
	Origin       string            `json:"origin,omitempty"`   // -o origin=, for clones
	Set          map[string]string `json:"set,omitempty"`      // -o
	// Carried names the properties of Set whose values the other host chose. ReceiveArgs
	// refuses values that Carry withholds.
	Carried []string `json:"carried,omitempty"`
	Carry   Carry    `json:"carry,omitzero"`
	// KeepKey refuses a raw stream that would replace the wrapped key of the target (see
	// Gate.KeepKey).
	KeepKey bool `json:"keep_key,omitempty"`
	// Corrective (-c, OpenZFS 2.2 and later) repairs damaged blocks of the snapshot in
	// Arrival, which Target already has. ZFS rewrites a block if the stream's data matches its
	// checksum. See HealPrefix.
	Corrective bool `json:"corrective,omitempty"`
	// Only limits a corrective receive to a stream of these blocks (see BlockFilter); empty for
	// all blocks.
	Only Blocks `json:"only,omitempty"`
	// Arrival lists the snapshots that the stream may bring.
	Arrival Arrival `json:"arrival,omitzero"`
}
