package job

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// changed turns a refusal into a failure, because something was already changed.
func changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// unchanged classifies an error before any change. A failed query is still a failure (exit 1),
// not a refusal.
func unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed", errors.New("interrupted"))
	}
	return err
}

// skippedError reports a dataset that was not sent because another one failed.
type skippedError struct{ dataset, need string }

func (e *skippedError) Error() string {
	return fmt.Sprintf("%s was not sent: it needs %s, which failed", e.dataset, e.need)
}

// skippedCause returns a skippedError with the class of err: the command that resumes the other
// dataset also sends this one.
func skippedCause(dataset, need string, err error) error {
	return &fault.Error{Class: fault.ClassOf(err), Err: &skippedError{dataset: dataset, need: need}}
}

func noDataset(at *end, dataset string) error {
	return fault.Refusef("list what there is: "+zfs.CommandLine([]string{"zfs", "list", "-r", zfs.PoolOf(dataset)}),
		"%s: no such dataset: %s", at.Label(), dataset)
}

// MissingPool turns a listing's NotFound error into a refusal with a NoPool.
func MissingPool(at *hosts.Conn, dataset string, err error) error {
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return fault.Refusef("list the pools there: zpool list; and those that could be imported: zpool import", "%w", &NoPool{Host: at.Label(), Local: at.Local(), Pool: zfs.PoolOf(dataset)})
	}
	return err
}

// NoPool is the error for a pool that does not exist on a host.
type NoPool struct {
	Host  string // for messages
	Local bool   // Host is the local host
	Pool  string
}

func (e *NoPool) Error() string { return e.Host + ": no such pool: " + e.Pool }
