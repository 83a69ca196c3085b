package hosts

import (
	"context"
	"errors"
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

// Host has the operations that every host with datasets supports. The other interfaces of this file
// are roles, which a host may have in addition; see RoleOf.
//
// Methods are safe for concurrent use. If the context ends, a method ends what it started and
// returns promptly. ZFS errors are *zfs.Error; refusals and hints are *fault.Error, also from
// remote hosts. After ErrLost, the outcome is unknown, but a Transfer without a Result never
// committed more than its authenticated end permitted.
type Host interface {
	// Name returns the host's name for messages: "local", or the name that the user typed.
	Name() string
	// Facts returns facts that are constant during a run.
	Facts(ctx context.Context) (Facts, error)
	// HostFacts is like Facts, but also works without ZFS. Backend is then "", and ZFS is "" if it
	// is not loaded.
	HostFacts(ctx context.Context) (Facts, error)
	Datasets
	// RTT returns the shortest round-trip time seen, or 0 if the host is local or the time is
	// unknown.
	RTT() time.Duration
	// Close ends everything that the Host started.
	Close() error
}

// Datasets are the operations that zfs(8) suffices for.
type Datasets interface {
	Lister
	Snapshots
}

// Lister reads datasets and their versions.
type Lister interface {
	// List lists datasets in one call. If the dataset does not exist, Datasets is empty. If the
	// pool does not exist, the error is a *zfs.Error of kind NotFound.
	List(ctx context.Context, q ListQuery) (zfs.Listing, error)
	// DatasetOf returns the dataset that contains an absolute path. If the path is not on ZFS, the
	// error is a *zfs.Error of kind NotFound.
	DatasetOf(ctx context.Context, path string) (string, error)
	// Properties returns properties by the full name of a dataset or version. It skips names that
	// do not exist. If properties is empty, it returns locally set ones.
	Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error)
	// Estimate returns the estimated size of each stream in bytes.
	Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error)
	// Holds returns the tags of user holds by snapshot. It skips snapshots that have no holds or do
	// not exist.
	Holds(ctx context.Context, snapshots []string) (map[string][]string, error)
}

// Snapshots creates, holds and destroys versions, and prepares targets.
type Snapshots interface {
	// Snapshot takes all snapshots ("pool/a@x") in one transaction.
	Snapshot(ctx context.Context, snapshots []string) error
	// Hold places a user hold on each snapshot. It ignores existing holds.
	Hold(ctx context.Context, tag string, snapshots []string) error
	// Release removes holds. It ignores missing holds and snapshots.
	Release(ctx context.Context, tag string, snapshots []string) error
	// Bookmark creates bookmarks. The map is from full bookmark name to full snapshot name. It
	// ignores existing bookmarks with the same GUID.
	Bookmark(ctx context.Context, bookmarks map[string]string) error
	// Destroy destroys snapshots ("pool/a@x") and bookmarks ("pool/a#x"), never datasets. It
	// ignores missing names.
	Destroy(ctx context.Context, versions []string) error
	// CreateParents creates missing ancestors of dataset as filesystems with canmount=off.
	CreateParents(ctx context.Context, dataset string) error
	// DiscardPartial discards the partially received state of a dataset.
	DiscardPartial(ctx context.Context, dataset string) error
}

// Digester computes digests of streams.
type Digester interface {
	// Digest generates a stream and returns the digest of its contents instead of sending it (see
	// zfs.ContentDigest). progress may be nil.
	Digest(ctx context.Context, q ContentQuery, progress func(transfer.Progress)) (Digest, error)
}

// Devices inspects block devices and image files.
type Devices interface {
	// InspectDevice returns the facts of the device or image file at an absolute path.
	InspectDevice(ctx context.Context, path string) (device.Facts, error)
	// DeviceState returns what an interrupted copy to the task's target stored.
	DeviceState(ctx context.Context, t device.Task) (device.State, error)
	// DigestDevice hashes a device. progress may be nil.
	DigestDevice(ctx context.Context, q device.DigestQuery, progress func(transfer.Progress)) (device.Digest, error)
}

// Mover transfers streams, devices and files.
type Mover interface {
	// Offer opens a listener for one Transfer and returns the ticket for the other end. The
	// listener closes after use, at the deadline, or when the Host is closed.
	Offer(ctx context.Context, o tcp.Offer) (tcp.Ticket, error)
	// Transfer does the host's part of a task. It calls progress about twice a second, unless
	// progress is nil.
	Transfer(ctx context.Context, t Task, progress func(transfer.Progress)) (Result, error)
}

// FileReader reads files of snapshots through a private mount.
type FileReader interface {
	// ReadFiles mounts a snapshot for this call alone and returns the digest of its files.
	// Unreadable files are part of the digest, not an error. progress may be nil.
	ReadFiles(ctx context.Context, q files.Query, progress func(transfer.Progress)) (files.Digest, error)
}

// Restorer returns restored datasets to use.
type Restorer interface {
	// SetProperties changes properties of a dataset.
	SetProperties(ctx context.Context, a zfs.PropertyChange) error
	// Mount mounts a filesystem at its mountpoint. It ignores a mounted one.
	Mount(ctx context.Context, dataset string) error
	// Unmount unmounts a filesystem and all mounts below it. It ignores an unmounted one.
	Unmount(ctx context.Context, dataset string) error
	// Rollback rolls a dataset back to a snapshot, and destroys the newer snapshots and bookmarks
	// that the request names. It refuses if there are others. Repeating the request completes an
	// interrupted one.
	Rollback(ctx context.Context, r zfs.Rollback) error
	// InheritKey makes an encryption root inherit the key of its parent. It refuses unless the
	// properties prove that both keys are the same, because nothing could open the dataset
	// otherwise.
	InheritKey(ctx context.Context, dataset string) error
	// InheritKeyAsserted is like InheritKey, for a named parent and for keys of which ZFS does not
	// show whether they are the same.
	InheritKeyAsserted(ctx context.Context, t zfs.AssertedKey) error
	// MakeEncryptionRoot makes a dataset with an inherited key an encryption root that has the same
	// key. It ignores encryption roots. InheritKey undoes it while both keys are the same.
	MakeEncryptionRoot(ctx context.Context, dataset string) error
	// InUse returns conflicts by path: the contents of directories that a mount would hide, and the
	// users of devices.
	InUse(ctx context.Context, paths []string) (map[string]string, error)
}

// Measurer measures the host.
type Measurer interface {
	// Capture returns the system files that facts are read from, as a text archive (see package
	// sysinfo). It contains no key, password or address. A brief one runs no programs and takes
	// milliseconds.
	Capture(ctx context.Context, brief bool) ([]byte, error)
	// Measure makes one measurement and deletes its data. Only probe.TargetWrite creates a scratch
	// dataset, below an existing one.
	Measure(ctx context.Context, r probe.Request) (probe.Ceiling, error)
}

// Healer finds and repairs damage of a pool.
type Healer interface {
	// Damage returns the permanent errors of a dataset and its descendants.
	Damage(ctx context.Context, dataset string) (zfs.Damage, error)
	// Scrub starts a scrub of the dataset's pool and returns immediately.
	Scrub(ctx context.Context, dataset string) error
	// Revert rolls a dataset back to a snapshot ("pool/a@x"). All newer snapshots must have
	// zfs.HealPrefix; it destroys them.
	Revert(ctx context.Context, snapshot string) error
	// Sync writes out the open transaction group of the dataset's pool. Before that, properties
	// such as "written" lack the last seconds.
	Sync(ctx context.Context, dataset string) error
}

// DrillHost runs restore tests in private clones.
type DrillHost interface {
	// CreateDrillClone creates a clone that is not mounted, and returns its name.
	CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error)
	// DestroyDrillClones destroys drill clones and nothing else.
	DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error
	// RunInDrillClone runs a command in a drill clone as root. A failed command is part of the
	// result, not an error.
	RunInDrillClone(ctx context.Context, a zfs.DrillCommand) (zfs.DrillResult, error)
}

// Freezer freezes applications while it takes snapshots.
type Freezer interface {
	// SnapshotFrozen takes snapshots in one transaction while the requested applications are
	// frozen. It sets freeze.Property on the snapshots that are proven to be consistent. A failure
	// to freeze is part of the result, not an error.
	SnapshotFrozen(ctx context.Context, q freeze.Request) (freeze.Result, error)
}

// Retention renames and destroys copies on a target.
type Retention interface {
	// RenameDiverged renames diverged copies with their descendants, to make room for new copies.
	// It ignores copies that are renamed already. An empty list asks whether this is permitted.
	RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error
	// DestroyOrphans destroys copies whose source was deleted. If a copy must be kept
	// (zfs.Orphan.RefusalReason), the error has class fault.Refused. It ignores missing copies. An
	// empty list asks whether this is permitted.
	DestroyOrphans(ctx context.Context, all []zfs.Orphan) error
}

// FullHost has every role. zxfer runs on such a host.
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

// RoleOf returns a host in role R. If the host lacks the role, the error is a refusal.
func RoleOf[R any](s Host) (role R, err error) {
	role, ok := s.(R)
	if !ok {
		err = fault.Refusef("choose another wire, for which zxfer runs there", "%s: without zxfer there it cannot %s", s.Name(), missingAbility[R]())
	}
	return role, err
}

// WithRole adapts a function on a role to a function on a Host.
func WithRole[R any](f func(R) error) func(Host) error {
	return func(s Host) error {
		role, err := RoleOf[R](s)
		if err != nil {
			return err
		}
		return f(role)
	}
}

// Call calls an operation of role R and returns its reply. by is the Do or Retry method of a
// connection.
func Call[R, A, B any](ctx context.Context, by func(context.Context, func(Host) error) error, op func(R, context.Context, A) (B, error), args A) (answer B, err error) {
	err = by(ctx, WithRole(func(role R) (err error) { answer, err = op(role, ctx, args); return err }))
	return answer, err
}

// missingAbility returns the verb phrase for the missing role R in messages.
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

// ListQuery selects the datasets to list.
type ListQuery = zfs.ListQuery

// Result is the report of one end of a Transfer.
type Result struct {
	transfer.Result
	// Device is nil unless a device was copied.
	Device *device.Account `json:"device,omitempty"`
	// Files is nil unless files were copied.
	Files *files.Account `json:"files,omitempty"`
}

// ContentQuery requests the digest of a stream. Its flags are those of the send.
type ContentQuery struct {
	zfs.SendSpec
	Within zfs.Within `json:"within,omitzero"`
	// Seed is the seed of the hashes. A random one for each query demands that the host reads the
	// data.
	Seed uint64 `json:"seed,omitempty"`
	// KeyFile holds the key of an encrypted dataset, which is loaded for the query; "" = do not
	// load it.
	KeyFile string `json:"key_file,omitempty"`
}

// Digest is the digest of a stream's contents, independent of its framing.
type Digest = zfs.Contents

// Facts describes a host. "" and 0 mean unknown.
type Facts struct {
	Hostname string `json:"hostname"`
	Arch     string `json:"arch"`   // GOARCH
	Kernel   string `json:"kernel"` // uname -r
	CPUs     int    `json:"cpus"`
	Boot     string `json:"boot"`      // boot id: hosts with the same one are the same computer
	Version  string `json:"version"`   // of zxfer
	User     string `json:"user"`      // effective user name
	Root     bool   `json:"root"`      // effective uid 0
	ZFS      string `json:"zfs"`       // version of the kernel module, "2.3.9-1"
	Backend  string `json:"backend"`   // "libzfs_core (pyzfs)" or "zfs command line (why)", according to the installed packages
	SSHLocal string `json:"ssh_local"` // address of this host in SSH_CONNECTION
	SSHPeer  string `json:"ssh_peer"`  // address of the ssh client
	tcp.TCP
}

// ErrLost means that the connection to a host broke. The host ends its running operations by
// itself.
var ErrLost = errors.New("connection to the host was lost")

// ErrForbidden means that the policy of a restricted agent does not permit the request.
var ErrForbidden = errors.New("the agent's policy forbids it")
