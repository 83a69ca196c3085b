package cli

import (
	"context"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"

	"zxfer/pkg/zfs"
)

// Backend makes the small changes around a transfer, in bulk where it can.
// CLI does it by command line, package lzc by libzfs_core; one conformance
// suite holds for both. Errors are *zfs.Error and name what failed.
type Backend interface {
	// Estimate returns the size of each stream in bytes.
	Estimate(ctx context.Context, streams []zfs.SendSpec) ([]uint64, error)
	// OpenSend starts a stream, a small one as soon as can be.
	OpenSend(ctx context.Context, s zfs.SendSpec) (Stream, error)
	// Snapshot takes all snapshots in one transaction, or none.
	Snapshot(ctx context.Context, snapshots []string) error
	// Hold places a hold on each; one with the tag already is no error.
	Hold(ctx context.Context, tag string, snapshots []string) error
	// Release removes holds; what is gone is no error.
	Release(ctx context.Context, tag string, snapshots []string) error
	// Bookmark makes bookmarks: full bookmark name to full snapshot name.
	// One of the same GUID already there is no error.
	Bookmark(ctx context.Context, bookmarks map[string]string) error
	// Destroy destroys snapshots and bookmarks, nothing else; what is gone
	// is no error.
	Destroy(ctx context.Context, versions []string) error
	// InheritKey has an encryption root take its key from above again. Both have to
	// be one key: that is the caller's to prove.
	InheritKey(ctx context.Context, dataset string) error
	// MakeEncryptionRoot makes what takes its key from above an encryption root, of the key that
	// it has.
	MakeEncryptionRoot(ctx context.Context, dataset string) error
}

// CLI runs the tools of one host. Its methods may be called from several
// goroutines.
type CLI struct {
	zfs, zpool string // paths, "" where not found
	log        func(string)
	spawn      *spawner
	elsewhere  Elsewhere // nil for the tools of this host
	life       context.Context
}

var _ Backend = (*CLI)(nil)

// New finds the tools on PATH, or where they are installed while PATH is a
// user's. That they are missing shows when they are used: an error of kind
// NoZFS. log, which may be nil, is told what a command warned of although it
// succeeded.
func New(log func(string)) *CLI {
	if log == nil {
		log = func(string) {}
	}
	return &CLI{zfs: lookPath("zfs"), zpool: lookPath("zpool"), log: log, spawn: newSpawner(), life: context.Background()}
}

// Under is the same CLI, whose commands end with life too. Streams do not.
func (c *CLI) Under(life context.Context) *CLI {
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

// Close kills every child that still runs.
func (c *CLI) Close() error {
	c.spawn.close()
	return nil
}

// StartChild starts a command that the kernel kills when this process ends,
// however it does, or when Close is called. The caller waits for it.
func (c *CLI) StartChild(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return c.spawn.run(cmd)
}

// UserName is who runs the tools, for hints.
func UserName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
