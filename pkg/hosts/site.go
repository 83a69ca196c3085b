// Package site is what can be done on one host: the seam between deciding and
// doing. Local does it here; the agent package's Remote forwards the same
// operations to a Local on another host, so push, pull and third-party
// transfers are one code path.
//
// Operations are semantic ("receive into this dataset"), never commands, so
// that the far end can enforce a policy. A Site decides nothing by itself:
// what to do is the planner's, in what order the job's.
package hosts

import (
	"context"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/freeze"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Host is one host that has datasets. What it can do besides are roles: Digester,
// Mover, Devices, Reader, Prober, Owner, Rehearser,
// Curator, Freezer; see As.
//
// Every method may be called from several goroutines. Each returns promptly
// when its context ends, with everything it started ended too. Errors of ZFS
// are *zfs.Error, refusals and hints *fault.Error, also through a Remote. A
// lost connection to the host is ErrLost: nothing can be said about what the
// host did, except that a Transfer without a Result never committed more than
// its authenticated end allowed.
type Host interface {
	// Name is the host as messages name it: "local", or what the user typed.
	Name() string
	// Facts returns what does not change during a run.
	Facts(ctx context.Context) (Facts, error)
	// HostFacts returns the same of a host that may have no ZFS: Backend is
	// unknown then, and ZFS is "".
	HostFacts(ctx context.Context) (Facts, error)
	Datasets
	// RTT is the shortest round trip seen to the host, 0 for this one or
	// while it is unknown.
	RTT() time.Duration
	// Close ends everything the Site started.
	Close() error
}

// Datasets are what can be done with no more than zfs(8).
type Datasets interface {
	Lister
	Snapshots
}

// Lister tells what there is.
type Lister interface {
	// List surveys a dataset: one scoped listing. A dataset that does not
	// exist is not an error: Datasets is then empty. A pool that does not
	// exist is a *zfs.Error of kind NotFound.
	List(ctx context.Context, q ListQuery) (zfs.Listing, error)
	// DatasetOf returns the dataset that is mounted at, or holds, an absolute
	// path; a *zfs.Error of kind NotFound where that is no ZFS filesystem.
	DatasetOf(ctx context.Context, path string) (string, error)
	// Properties reads properties of datasets or versions by full name.
	// Names that do not exist are left out. With no properties named it
	// returns those that are set locally.
	Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error)
	// Estimate returns the size in bytes of each stream, as near as ZFS knows.
	Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error)
	// Holds returns the tags of the user holds on each snapshot that has any;
	// snapshots that do not exist are left out.
	Holds(ctx context.Context, snapshots []string) (map[string][]string, error)
}

// Snapshots makes, keeps and destroys versions, and prepares targets.
type Snapshots interface {
	// Snapshot takes all named snapshots ("pool/a@x") in one transaction, or none.
	Snapshot(ctx context.Context, snapshots []string) error
	// Hold places a user hold on each snapshot; a tag that is there already is no error.
	Hold(ctx context.Context, tag string, snapshots []string) error
	// Release removes holds; a hold or snapshot that is gone is no error.
	Release(ctx context.Context, tag string, snapshots []string) error
	// Bookmark makes bookmarks of snapshots: full bookmark name to full
	// snapshot name. A bookmark of the same GUID that is there already is no error.
	Bookmark(ctx context.Context, bookmarks map[string]string) error
	// Destroy destroys snapshots ("pool/a@x") and bookmarks ("pool/a#x"),
	// nothing else. Names that are gone are no error.
	Destroy(ctx context.Context, versions []string) error
	// CreateParents creates the missing ancestors of dataset as
	// filesystems that are never mounted (canmount=off).
	CreateParents(ctx context.Context, dataset string) error
	// DiscardPartial drops the saved state of an interrupted receive.
	DiscardPartial(ctx context.Context, dataset string) error
}

// Digester reads streams where they are.
type Digester interface {
	// Digest produces a stream and returns the digest of its contents
	// instead of sending it (see zfs.ContentDigest). progress may be nil.
	Digest(ctx context.Context, q ContentQuery, progress func(transfer.Progress)) (Digest, error)
}

// Devices are a host's block devices and image files.
type Devices interface {
	// InspectDevice looks at a device or image file by its absolute path.
	InspectDevice(ctx context.Context, path string) (device.Facts, error)
	// DeviceState tells what an earlier, interrupted copy onto the task's
	// target left to be resumed.
	DeviceState(ctx context.Context, t device.Task) (device.State, error)
	// DigestDevice hashes a device. progress may be nil.
	DigestDevice(ctx context.Context, q device.DigestQuery, progress func(transfer.Progress)) (device.Digest, error)
}

// Mover moves streams and devices itself.
type Mover interface {
	// Offer opens a listener for one Transfer and returns the ticket that
	// the other end dials with. It closes by itself when the deadline
	// passes, when the Site is closed or when it was used.
	Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error)
	// Transfer does its part of moving something. progress may be nil; it is
	// called about twice a second.
	Transfer(ctx context.Context, t Task, progress func(transfer.Progress)) (Result, error)
}

// FileReader looks into snapshots without anybody else seeing it.
type FileReader interface {
	// ReadFiles reads the files of a snapshot, mounted for it alone, and returns
	// their digest. What cannot be read of them is told in it, and no error.
	// progress may be nil.
	ReadFiles(ctx context.Context, q files.Query, progress func(transfer.Progress)) (files.Digest, error)
}

// Restorer hands datasets to those who use them, as a restore does in the end.
type Restorer interface {
	// SetProperties changes properties of a dataset.
	SetProperties(ctx context.Context, a zfs.PropertyChange) error
	// Mount mounts a filesystem at its mountpoint; one that is mounted is no error.
	Mount(ctx context.Context, dataset string) error
	// Unmount unmounts a filesystem, and what is mounted below it; that it is not
	// mounted is no error.
	Unmount(ctx context.Context, dataset string) error
	// Rollback makes a dataset again what it was at one of its snapshots, and destroys
	// the newer snapshots and bookmarks that the request names. If the dataset has any
	// other newer one, it is refused. The same request completes one that was interrupted.
	Rollback(ctx context.Context, r zfs.Rollback) error
	// InheritKey has an encryption root take its key from the one above it again, where
	// the properties of both prove that it is one key; else it is refused, as
	// nothing would open the dataset any more.
	InheritKey(ctx context.Context, dataset string) error
	// InheritKeyAsserted has an encryption root take its key from the one above it, which must be
	// the one that is named, where ZFS does not tell whether it is one key.
	InheritKeyAsserted(ctx context.Context, t zfs.AssertedKey) error
	// MakeEncryptionRoot has what takes its key from above be an encryption root of the key that
	// it has; one that is one is no error. JoinKey undoes it, as long as both are one.
	MakeEncryptionRoot(ctx context.Context, dataset string) error
	// InUse tells, of the directories where a mount would hide something, what,
	// and of the devices that are in use, by whom.
	InUse(ctx context.Context, paths []string) (map[string]string, error)
}

// Measurer looks at the host itself.
type Measurer interface {
	// Capture reads the files that facts are made of into a text archive
	// (see package sysinfo). It holds no key, password or address. A brief one
	// takes milliseconds, and lacks what programs would have to be run for.
	Capture(ctx context.Context, brief bool) ([]byte, error)
	// Measure makes one measurement, which leaves nothing behind. A scratch
	// dataset is made below an existing one for probe.TargetWrite only.
	Measure(ctx context.Context, r probe.Request) (probe.Ceiling, error)
}

// Healer looks after a pool.
type Healer interface {
	// Damage reads the permanent errors of a dataset's pool that are in it or
	// below it.
	Damage(ctx context.Context, dataset string) (zfs.Damage, error)
	// Scrub begins one of a dataset's pool, and returns.
	Scrub(ctx context.Context, dataset string) error
	// Revert makes a dataset what it was at a snapshot ("pool/a@x"), where all that
	// came after it are snapshots of zfs.HealPrefix, which go.
	Revert(ctx context.Context, snapshot string) error
	// Sync has a dataset's pool write out its open transaction group: until then
	// properties such as "written" lack the last seconds. It changes nothing else.
	Sync(ctx context.Context, dataset string) error
}

// DrillHost takes a copy up as after a loss, without anybody else seeing it.
type DrillHost interface {
	// CreateDrillClone makes a clone that nothing mounts, and returns its name.
	CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error)
	// DestroyDrillClones destroys the clones that were made so, and nothing else.
	DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error
	// RunInDrillClone runs a command in one, as root. That the command fails is no error.
	RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error)
}

// Freezer holds applications still while it takes snapshots.
type Freezer interface {
	// SnapshotFrozen takes snapshots in one transaction, as Snapshot does, while what
	// is wanted stands still, and sets freeze.Property on those for which that is
	// proved. That something could not be held still is no error.
	SnapshotFrozen(ctx context.Context, q freeze.Request) (freeze.Result, error)
}

// Retention keeps a target right where streams alone cannot.
type Retention interface {
	// RenameDiverged renames copies, for which new ones are begun; what is below goes with
	// them. One that is set aside already is no error; none asks whether that is allowed.
	RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error
	// DestroyOrphans destroys copies of which the original is gone: each only if nothing
	// speaks for it (zfs.Gone.Leaves), which is fault.Refused. One that is gone is no
	// error; none asks whether that is allowed.
	DestroyOrphans(ctx context.Context, all []zfs.Orphan) error
}

// FullHost is a Site in every role: zxfer itself acts there.
type FullHost interface {
	Host
	Digester
	Mover
	Devices
	FileReader
	Measurer
	Restorer
	Healer
	DrillHost
	Freezer
	Retention
}

// RoleOf returns a Site in the role R, and a refusal where the host does not have it.
func RoleOf[R any](s Host) (role R, err error) {
	role, ok := s.(R)
	if !ok {
		err = fault.Refusef("choose another wire, for which zxfer runs there", "%s: without zxfer there it cannot %s", s.Name(), missingAbility[R]())
	}
	return role, err
}

// WithRole has f called with a Site in a role.
func WithRole[R any](f func(R) error) func(Host) error {
	return func(s Host) error {
		role, err := RoleOf[R](s)
		if err != nil {
			return err
		}
		return f(role)
	}
}

// Call has a role's operation answer, by a way to a Site: Do or Again of a host.
func Call[R, A, B any](ctx context.Context, by func(context.Context, func(Host) error) error, op func(R, context.Context, A) (B, error), args A) (answer B, err error) {
	err = by(ctx, WithRole(func(role R) (err error) { answer, err = op(role, ctx, args); return err }))
	return answer, err
}

// missingAbility is what a host without a role cannot do.
func missingAbility[R any]() string {
	switch any((*R)(nil)).(type) {
	case *Digester:
		return "compute digests"
	case *Devices:
		return "copy devices"
	case *Restorer:
		return "give restored datasets back"
	case *Mover:
		return "move a stream by itself"
	case *FileReader:
		return "read files"
	case *Healer:
		return "tell what is damaged"
	case *DrillHost:
		return "clone a copy to look at it"
	case *Freezer:
		return "hold applications still for a snapshot"
	case *Retention:
		return "set a copy aside, or remove one"
	}
	return "be looked at and measured"
}

// ListQuery scopes a survey.
type ListQuery = zfs.ListQuery

// Result is one end's account of a Transfer.
type Result struct {
	transfer.Result
	// Device is set where one was copied, not a stream.
	Device *device.Account `json:"device,omitempty"`
	// Files is set where files were.
	Files *files.Account `json:"files,omitempty"`
}

// ContentQuery asks what a stream holds. Its Flags are as they would be sent.
type ContentQuery struct {
	zfs.SendSpec
	Within zfs.Within `json:"within,omitzero"`
	// KeyFile holds the key of what is encrypted, which is loaded meanwhile; "" = it is not.
	KeyFile string `json:"key_file,omitempty"`
}

// Digest is what a stream holds, apart from how it was framed.
type Digest = zfs.Contents

// Facts are what a host says about itself. "" and 0 mean unknown.
type Facts struct {
	Hostname string `json:"hostname"`
	Arch     string `json:"arch"`   // GOARCH
	Kernel   string `json:"kernel"` // uname -r
	CPUs     int    `json:"cpus"`
	Boot     string `json:"boot"`      // id of the running kernel's start: hosts of one boot share a machine
	Version  string `json:"version"`   // of zxfer
	User     string `json:"user"`      // effective user name
	Root     bool   `json:"root"`      // effective uid 0
	ZFS      string `json:"zfs"`       // kernel module, "2.3.9-1"
	Backend  string `json:"backend"`   // "libzfs_core (pyzfs)" or "zfs command line (why)", by what is installed
	SSHLocal string `json:"ssh_local"` // address this host was reached at over ssh, from SSH_CONNECTION
	SSHPeer  string `json:"ssh_peer"`  // address the ssh client came from
	tcp.TCP
}
