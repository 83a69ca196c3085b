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

// VersionKind tells the two kinds of points in a dataset's history apart.
type VersionKind string

// The kinds of versions; the value is the separator in a full name.
const (
	Snapshot VersionKind = "@"
	Bookmark VersionKind = "#"
)

// Version is a point in a dataset's history: a snapshot, or a bookmark that
// remembers one. Two versions are the same point if and only if their GUIDs
// are equal; names prove nothing.
type Version struct {
	Kind      VersionKind `json:"kind"`
	Name      string      `json:"name"` // without dataset and separator
	GUID      uint64      `json:"guid,string"`
	CreateTXG uint64      `json:"createtxg,string"` // order of creation within one pool
	// Pretended tells that it is yet to be made: for plans.
	Pretended bool `json:"-"`
}

// Short is the version without its dataset: "@daily" or "#daily".
func (v Version) Short() string { return string(v.Kind) + v.Name }

// In is the full name of the version in a dataset: "tank/a@daily".
func (v Version) In(dataset string) string { return dataset + v.Short() }

// Property is one value of zfs get and where it comes from.
type Property struct {
	Value  string `json:"value"`  // as zfs get -p prints it; "-" where it has none
	Source string `json:"source"` // local, default, received, temporary, "inherited from …", "-"
}

// Local tells whether the value was set on the dataset itself.
func (p Property) Local() bool { return p.Source == "local" }

// Dataset is one filesystem or volume with its history.
type Dataset struct {
	Name       string              `json:"name"`
	Type       Type                `json:"type"`
	GUID       uint64              `json:"guid,string"`
	Properties map[string]Property `json:"properties"`
	Versions   []Version           `json:"versions"` // ascending CreateTXG, a bookmark before the snapshot it was made of
	// NewestOnly tells that Versions has no more than the newest snapshot: there
	// may be older ones, and bookmarks.
	NewestOnly bool `json:"newest_only,omitempty"`
}

// Get returns the value of a property, "" where it is unknown or "-".
func (d *Dataset) Get(name string) string {
	if v := d.Properties[name].Value; v != "-" {
		return v
	}
	return ""
}

// Encrypted tells whether the dataset's blocks are encrypted on disk.
func (d *Dataset) Encrypted() bool {
	e := d.Get("encryption")
	return e != "" && e != "off"
}

// KeyLoaded tells whether the dataset's key is available to the kernel.
func (d *Dataset) KeyLoaded() bool { return d.Get("keystatus") == "available" }

// ResumeToken is the token of a receive that was cut off, "" where there is none.
func (d *Dataset) ResumeToken() string { return d.Get("receive_resume_token") }

// Inconsistent tells whether a first receive into the dataset was cut off: it
// has no snapshot yet and only a resume completes it.
func (d *Dataset) Inconsistent() bool { return d.Get("inconsistent") == "1" }

// WrittenTo tells whether there is more in it than its newest snapshot has.
func (d *Dataset) WrittenTo() bool {
	written := d.Get("written")
	return written != "" && written != "0" && written != "-"
}

// SnapshotsChanged is ChangedProperty in seconds since 1970, 0 where it is
// unknown.
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

// Skip leaves out the snapshots whose names begin so.
func (l *Listing) Skip(prefix string) {
	for _, d := range l.Datasets {
		d.Versions = slices.DeleteFunc(d.Versions, func(v Version) bool { return v.Kind == Snapshot && strings.HasPrefix(v.Name, prefix) })
	}
}

// SnapshotOf returns the snapshot of that GUID.
func (d *Dataset) SnapshotOf(guid uint64) (Version, bool) {
	for _, v := range d.Versions {
		if v.Kind == Snapshot && v.GUID == guid {
			return v, true
		}
	}
	return Version{}, false
}

// Latest returns the newest snapshot.
func (d *Dataset) Latest() (Version, bool) {
	for i := len(d.Versions) - 1; i >= 0; i-- {
		if d.Versions[i].Kind == Snapshot {
			return d.Versions[i], true
		}
	}
	return Version{}, false
}

// Pool is what zpool get tells of a pool.
type Pool struct {
	Name       string            `json:"name"`
	GUID       uint64            `json:"guid,string"`
	Properties map[string]string `json:"properties"` // size, free, health, readonly, ashift …; bytes are exact
	Features   map[string]string `json:"features"`   // name without "feature@" to disabled, enabled or active
}

// FeatureOn tells whether a pool feature is enabled or active.
func (p *Pool) FeatureOn(name string) bool {
	s := p.Features[name]
	return s == "enabled" || s == "active"
}

// ListQuery scopes a survey.
type ListQuery struct {
	Dataset   string `json:"dataset"`
	Recursive bool   `json:"recursive,omitempty"` // datasets below it too
	// Versions wants snapshots and bookmarks.
	Versions bool `json:"versions,omitempty"`
	// Newest wants the newest snapshot of each dataset in place of Versions:
	// where there are many snapshots, a small part of the time.
	Newest bool `json:"newest,omitempty"`
	// Alone leaves out the pool and the ancestors.
	Alone bool `json:"alone,omitempty"`
	// Only are the datasets to survey, all below Dataset or it itself, in
	// place of it and what is below it.
	Only []string `json:"only,omitempty"`
	// Changed wants ChangedProperty, and without Versions no more than
	// ChangeProperties. OpenZFS before 2.2 does not know it: it is then left out.
	Changed bool `json:"changed,omitempty"`
	// User are user properties to read as well.
	User []string `json:"user,omitempty"`
	// Brief reads no more than AncestorProperties of the ancestors.
	Brief bool `json:"brief,omitempty"`
}

// CheckUser refuses what is no name of a user property.
func (q *ListQuery) CheckUser() error {
	for _, name := range q.User {
		if err := CheckProperty(name); err != nil {
			return err
		}
		if !UserProperty(name) {
			return invalidName(name, "no name of a user property", `user properties have a ":"`)
		}
	}
	return nil
}

// Listing is the state of one side, as one scoped survey found it.
type Listing struct {
	Root      string     `json:"root"`      // the dataset asked for
	Datasets  []*Dataset `json:"datasets"`  // Root and, where asked, what is below it; sorted by name; empty if Root does not exist
	Ancestors []*Dataset `json:"ancestors"` // those above Root that exist, the pool first; without versions
	Pool      Pool       `json:"pool"`
	// Began is when the survey began, by the clock of the side, in seconds
	// since 1970.
	Began int64 `json:"began,omitempty"`
}

// ShortenAncestors leaves the ancestors no more than AncestorProperties.
func (l *Listing) ShortenAncestors() {
	short := AncestorProperties()
	for _, d := range l.Ancestors {
		maps.DeleteFunc(d.Properties, func(p string, _ Property) bool { return !slices.Contains(short, p) })
	}
}

// ByName are the datasets and the ancestors, for who looks for many.
func (l *Listing) ByName() map[string]*Dataset {
	all := make(map[string]*Dataset, len(l.Ancestors)+len(l.Datasets))
	for _, d := range slices.Concat(l.Ancestors, l.Datasets) {
		all[d.Name] = d
	}
	return all
}

// SnapshotNames are the full names of all snapshots.
func (l *Listing) SnapshotNames() (names []string) {
	for _, d := range l.Datasets {
		for _, v := range d.Snapshots() {
			names = append(names, v.In(d.Name))
		}
	}
	return names
}

// Find returns the dataset of that name, nil if the listing has none.
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

// PoolOf returns the pool part of the name of a dataset, snapshot or bookmark.
func PoolOf(name string) string {
	if i := strings.IndexAny(name, "/@#"); i >= 0 {
		return name[:i]
	}
	return name
}

// ParentOf returns the dataset above, "" for a pool's root.
func ParentOf(dataset string) string {
	i := strings.LastIndexByte(dataset, '/')
	if i < 0 {
		return ""
	}
	return dataset[:i]
}

// StreamFlags are the choices of a send stream that a chain must keep.
type StreamFlags struct {
	Raw         bool `json:"raw,omitempty"`          // -w
	LargeBlocks bool `json:"large_blocks,omitempty"` // -L
	Embedded    bool `json:"embedded,omitempty"`     // -e
	Compressed  bool `json:"compressed,omitempty"`   // -c
}

// SendSpec is one stream to produce. It is either the start of a stream
// (Dataset, From, To) or the rest of one (Token), never both.
type SendSpec struct {
	Dataset string `json:"dataset"`
	// From is the base: "" for a full stream, "@snap" or "#bookmark" of the
	// same dataset, or a full "pool/origin@snap" for a clone.
	From string `json:"from,omitempty"`
	// Through are the snapshots between From and To that the stream carries
	// too (-I), in order; empty for -i.
	Through []string    `json:"through,omitempty"`
	To      string      `json:"to"` // snapshot name without dataset and "@"
	Flags   StreamFlags `json:"flags"`
	Token   string      `json:"token,omitempty"` // resume token (-t); Dataset and To then only describe
}

// ReceiveSpec is one stream to store. Receives are resumable (-s), but for a
// pool that cannot keep their state, and never mount (-u).
type ReceiveSpec struct {
	Target   string            `json:"target"`
	Whole    bool              `json:"whole,omitempty"`    // no -s: the pool lacks ResumeFeature
	Rollback bool              `json:"rollback,omitempty"` // -F: lose what is newer than the base
	Origin   string            `json:"origin,omitempty"`   // -o origin=, for clones
	Set      map[string]string `json:"set,omitempty"`      // -o
	// Carried names what another host chose the value of, in Set. ReceiveArgs refuses
	// values that Carry withholds.
	Carried []string `json:"carried,omitempty"`
	Carry   Carry    `json:"carry,omitzero"`
	// KeepKey refuses a raw stream that would replace the wrapped key of what is
	// there (see Gate.KeepKey).
	KeepKey bool `json:"keep_key,omitempty"`
	// Corrective (-c, 2.2 and later) brings nothing: what blocks of the snapshot
	// that is to arrive are damaged in Target, which has it, are written anew from
	// the stream, where they have the checksums that they should. See HealPrefix.
	Corrective bool `json:"corrective,omitempty"`
	// Arrival is what the stream may bring.
	Arrival Arrival `json:"arrival,omitzero"`
}
