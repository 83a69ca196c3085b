// Package cli runs zfs(8) and zpool(8) for listings, streams, and the changes that a transfer
// needs.
//
// Nouns:
//   - CLI: the two tools of one host.
//   - Backend: the changes that the CLI or package lzc can do.
//   - Process: a running child. It has LC_ALL=C, a separate process group and a bounded copy of its
//     stderr. It ends with its context and with this process.
//   - Stream, SendSource and ReceiveSink: a running zfs send or zfs receive.
//   - RemoteRunner: runs the tools on another host.
//
// The package does not make decisions, parse output or phrase errors; package zfs does. It never
// rolls back, destroys datasets or forces anything unless the request says so. Only restore tests
// run a shell.
package cli

import (
	"context"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"

	"zxfer/pkg/zfs"
)

// Backend does the changes around a transfer, in bulk if possible. CLI implements it by command
// line and package lzc by libzfs_core. Both pass one conformance suite. Errors are *zfs.Error and
// name the failed object.
type Backend interface {
	// Estimate returns the size of each stream in bytes.
	Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error)
	// OpenSend starts a stream.
	OpenSend(ctx context.Context, s zfs.SendSpec) (Stream, error)
	// Snapshot takes all snapshots in one transaction.
	Snapshot(ctx context.Context, snapshots []string) error
	// Hold places a hold on each snapshot. It ignores existing holds.
	Hold(ctx context.Context, tag string, snapshots []string) error
	// Release removes holds. It ignores missing holds and snapshots.
	Release(ctx context.Context, tag string, snapshots []string) error
	// Bookmark creates bookmarks. The map is from full bookmark name to full snapshot name. It
	// ignores existing bookmarks with the same GUID.
	Bookmark(ctx context.Context, bookmarks map[string]string) error
	// Destroy destroys snapshots and bookmarks, never datasets. It ignores missing names.
	Destroy(ctx context.Context, versions []string) error
	// InheritKey makes an encryption root inherit its parent's key. The caller must have checked
	// that both keys are the same.
	InheritKey(ctx context.Context, dataset string) error
	// MakeEncryptionRoot makes a dataset with an inherited key an encryption root that has the same
	// key.
	MakeEncryptionRoot(ctx context.Context, dataset string) error
}

// CLI runs zfs(8) and zpool(8). It is safe for concurrent use.
type CLI struct {
	zfs, zpool string // paths, "" if not found
	log        func(string)
	spawn      *spawner
	remote     RemoteRunner // nil for the local tools
	life       context.Context
	noClones   *atomic.Bool // zpool lacks the properties of block cloning
	noLongname *atomic.Bool // zfs lacks zfs.LongnameProperty
}

var _ Backend = (*CLI)(nil)

// New finds the tools on PATH, or in the usual directories that a user's PATH lacks. If they are
// missing, their use fails with an error of kind NoZFS. log receives warnings of commands that
// succeeded; it may be nil.
func New(log func(string)) *CLI {
	if log == nil {
		log = func(string) {}
	}
	return &CLI{zfs: lookPath("zfs"), zpool: lookPath("zpool"), log: log, spawn: newSpawner(),
		life: context.Background(), noClones: &atomic.Bool{}, noLongname: &atomic.Bool{}}
}

// WithContext returns the same CLI with commands that also end with life. Streams do not.
func (c *CLI) WithContext(life context.Context) *CLI {
	under := *c
	under.life = life
	return &under
}

func lookPath(tool string) string {
	if p, err := exec.LookPath(tool); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return p
		}
	}
	return ""
}

// Close kills all running children.
func (c *CLI) Close() error {
	c.spawn.close()
	return nil
}

// StartChild starts a command that the kernel kills when this process ends in any way, or when
// Close is called. The caller waits for it.
func (c *CLI) StartChild(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c.spawn.run(cmd)
}

// GroupNames returns the names of the groups of this process. It omits groups without a name.
func GroupNames() (names []string) {
	ids, _ := os.Getgroups() // on error, no group counts
	for _, id := range append(ids, os.Getegid()) {
		if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
			names = append(names, g.Name)
		}
	}
	return names
}

// UserName returns the name of the user who runs the tools, for hints.
func UserName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
