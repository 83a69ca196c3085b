package hosts

import (
	"context"
	"errors"
	"time"

	"zxfer/pkg/device"
	"zxfer/pkg/files"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// Host is the local host or a remote host. Operations run on it with Call, Watch and Run.
//
// Methods are safe for concurrent use. ZFS errors are *zfs.Error; refusals and hints are
// *fault.Error, also from remote hosts.
type Host interface {
	// Name returns the host's name for messages: "local", or the name that the user typed.
	Name() string
	// Supports reports whether the host can run an operation.
	Supports(op Operation) bool
	// Run runs a request and sets its Answer. If the context ends, Run ends what it started and
	// returns promptly. After ErrLost, the outcome is unknown, but a Transfer without an answer never
	// committed more than its authenticated end permitted.
	Run(ctx context.Context, r *Request) error
	// RTT returns the shortest round-trip time seen, or 0 if the host is local or the time is
	// unknown.
	RTT() time.Duration
	// Close ends everything that the Host started.
	Close() error
}

// Plain has the operations that need no zxfer on the host. operations.go documents them.
type Plain interface {
	Facts(ctx context.Context) (Facts, error)
	HostFacts(ctx context.Context) (Facts, error)
	Datasets
	Copies
	Digest(ctx context.Context, q ContentQuery, progress func(transfer.Progress)) (Digest, error)
	Damage(ctx context.Context, dataset string) (zfs.Damage, error)
	Revert(ctx context.Context, snapshot string) error
	Sync(ctx context.Context, dataset string) error
	Permitted(ctx context.Context, dataset string) (zfs.Permitted, error)
}

// Copies has the operations on restored and replicated datasets that zfs(8) suffices for.
type Copies interface {
	SetProperties(ctx context.Context, a zfs.PropertyChange) error
	Unmount(ctx context.Context, dataset string) error
	Rollback(ctx context.Context, r zfs.Rollback) error
	RenameDiverged(ctx context.Context, all []zfs.DivergedCopy) error
	CreateDrillClone(ctx context.Context, a zfs.DrillClone) (string, error)
	DestroyDrillClones(ctx context.Context, a zfs.DrillClones) error
}

// Datasets has the operations that zfs(8) suffices for.
type Datasets interface {
	List(ctx context.Context, q ListQuery) (zfs.Listing, error)
	DatasetOf(ctx context.Context, path string) (string, error)
	Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error)
	Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error)
	Holds(ctx context.Context, snapshots []string) (map[string][]string, error)
	Snapshot(ctx context.Context, snapshots []string) error
	Hold(ctx context.Context, tag string, snapshots []string) error
	Release(ctx context.Context, tag string, snapshots []string) error
	Bookmark(ctx context.Context, bookmarks map[string]string) error
	Destroy(ctx context.Context, versions []string) error
	CreateParents(ctx context.Context, dataset string) error
	DiscardPartial(ctx context.Context, dataset string) error
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
	// Blocks is the number of blocks in a stream that was limited to some.
	Blocks uint64 `json:"blocks,omitempty"`
	// Arrived is nil unless ReceiveStream.Report is set and the stream arrived.
	Arrived *Arrived `json:"arrived,omitempty"`
}

// ContentQuery requests the digest of a stream. Its flags are those of the send.
type ContentQuery struct {
	zfs.SendSpec
	Within zfs.DigestRange `json:"within,omitzero"`
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
	Hostname string   `json:"hostname"`
	Arch     string   `json:"arch"`   // GOARCH
	Kernel   string   `json:"kernel"` // uname -r
	CPUs     int      `json:"cpus"`
	Boot     string   `json:"boot"`             // boot id: hosts with the same one are the same computer
	Version  string   `json:"version"`          // of zxfer
	User     string   `json:"user"`             // effective user name
	Root     bool     `json:"root"`             // effective uid 0
	ZFS      string   `json:"zfs"`              // version of the kernel module, "2.3.9-1"
	Backend  string   `json:"backend"`          // "libzfs_core (pyzfs)" or "zfs command line (why)", according to the installed packages
	SSHLocal string   `json:"ssh_local"`        // address of this host in SSH_CONNECTION
	SSHPeer  string   `json:"ssh_peer"`         // address of the ssh client
	Grants   []string `json:"grants,omitempty"` // flags of a restricted agent; empty = not restricted
	NoAgent  string   `json:"-"`                // why zxfer does not run there; "" = it runs
	tcp.TCP
}

// SameKernel reports whether two hosts run on one kernel, although they may have two names.
// Containers on one machine have different names and addresses, but one kernel. known is false if
// a host did not report its boot ID.
func SameKernel(a, b Facts) (same, known bool) {
	return a.Boot != "" && a.Boot == b.Boot, a.Boot != "" && b.Boot != ""
}

// ErrLost means that the connection to a host broke. The host ends its running operations by
// itself.
var ErrLost = errors.New("connection to the host was lost")

// ErrNotConnected means that the connection to the other host of a transfer could not be made, or is not permitted.
// This host has started nothing. The other one may have.
var ErrNotConnected = errors.New("not connected")

// NotConnected returns an error that matches ErrNotConnected, with the text of err.
func NotConnected(err error) error { return unconnected{err} }

type unconnected struct{ error }

func (u unconnected) Unwrap() error { return u.error }

func (unconnected) Is(target error) bool { return target == ErrNotConnected }

// ErrForbidden means that the policy of a restricted agent does not permit the request.
var ErrForbidden = errors.New("the agent's policy forbids it")
