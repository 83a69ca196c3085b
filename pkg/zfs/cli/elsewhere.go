package cli

import (
	"context"
	"errors"
	"syscall"

	"zxfer/pkg/zfs"
)

// Elsewhere runs commands on another host.
type Elsewhere interface {
	// Host is its name in messages.
	Host() string
	// User is who runs the commands there, "" = unknown.
	User() string
	// Run runs a command there to its end. The error says that this could not
	// be done, or not be told; a command that failed is none.
	Run(ctx context.Context, argv []string) (Ran, error)
}

// Ran is what a command elsewhere came to.
type Ran struct {
	Stdout []byte
	Stderr string
	Status int // exit status, as a shell tells it: above 128 for a signal
}

// NewElsewhere is a CLI whose commands run on another host. It has no streams:
// OpenSend and OpenReceive, and all that starts a process of this host, fail.
func NewElsewhere(e Elsewhere, log func(string)) *CLI {
	c := New(log)
	c.zfs, c.zpool, c.elsewhere = "zfs", "zpool", e
	return c
}

// errElsewhere keeps what is meant for another host from running on this one.
var errElsewhere = errors.New("it cannot be started on another host")

func (c *CLI) outputElsewhere(ctx context.Context, f zfs.Failure, tool string, args []string) (string, error) {
	f.Argv = append([]string{tool}, args...)
	r, err := c.elsewhere.Run(ctx, f.Argv)
	if err != nil {
		return "", opError(f, err)
	}
	if r.Status != 0 {
		err = r.Err(f, c.elsewhere)
	}
	return string(r.Stdout), err
}

// Err is the failure of a command elsewhere that did not exit 0.
func (r Ran) Err(f zfs.Failure, at Elsewhere) *zfs.Error {
	f.Stderr, f.User = r.Stderr, at.User()
	if r.Status > 128 {
		f.Signal = syscall.Signal(r.Status - 128).String()
	}
	e := f.Err()
	e.Host = at.Host()
	return e
}
