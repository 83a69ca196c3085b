package cli

import (
	"context"
	"errors"
	"syscall"

	"zxfer/pkg/zfs"
)

// RemoteRunner runs commands on another host.
type RemoteRunner interface {
	// Host returns the host's name for messages.
	Host() string
	// User returns the user who runs the commands, "" = unknown.
	User() string
	// Run runs a command to its end. The error means that it could not run or that its outcome is
	// unknown. A failed command is not an error.
	Run(ctx context.Context, argv []string) (RunResult, error)
}

// RunResult is the outcome of a remote command.
type RunResult struct {
	Stdout []byte
	Stderr string
	Status int // exit status of a shell: above 128 for a signal
}

// NewRemote returns a CLI that runs its commands on another host. It has no streams: everything
// that starts a local process fails, such as OpenSend.
func NewRemote(e RemoteRunner, log func(string)) *CLI {
	c := New(log)
	c.zfs, c.zpool, c.remote = "zfs", "zpool", e
	return c
}

// errRemote keeps commands for another host from running locally.
var errRemote = errors.New("it cannot be started on another host")

func (c *CLI) outputRemote(ctx context.Context, f zfs.Failure, tool string, args []string) (string, error) {
	f.Argv = append([]string{tool}, args...)
	r, err := c.remote.Run(ctx, f.Argv)
	if err != nil {
		return "", opError(f, err)
	}
	if r.Status != 0 {
		err = r.Err(f, c.remote)
	}
	return string(r.Stdout), err
}

// Err returns the error of a remote command with a nonzero exit status.
func (r RunResult) Err(f zfs.Failure, at RemoteRunner) *zfs.Error {
	f.Stderr, f.User = r.Stderr, at.User()
	if r.Status > 128 {
		f.Signal = syscall.Signal(r.Status - 128).String()
	}
	e := f.Err()
	e.Host = at.Host()
	return e
}
