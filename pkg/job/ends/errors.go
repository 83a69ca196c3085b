package ends

import (
	"context"
	"errors"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Changed turns a refusal into a failure, because something was already changed.
func Changed(err error) error {
	switch fault.ClassOf(err) {
	case fault.Refused, fault.Usage:
		return &fault.Error{Class: fault.Failed, Hint: fault.HintOf(err), Err: err}
	}
	return err
}

// Unchanged classifies an error before any change. A failed query is still a failure (exit 1),
// not a refusal.
func Unchanged(err error) error {
	if errors.Is(err, context.Canceled) {
		return fault.Interrupt("nothing was changed; run the same command again", errors.New("interrupted"))
	}
	return err
}

// NoDataset returns the refusal of a dataset that does not exist.
func NoDataset(at *End, dataset string) error {
	return fault.Refusef("list the datasets: "+at.Conn.Command("zfs", "list", "-r", zfs.PoolOf(dataset)),
		"%s: no such dataset: %s", at.Conn.Label(), dataset)
}

// MissingPool turns a listing's NotFound error into a refusal. name is the dataset, with "@" and a
// snapshot if the user named one.
func MissingPool(at *hosts.Conn, name string, err error) error {
	if !errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		return err
	}
	dataset, _, _ := strings.Cut(name, "@")
	pool, hint := zfs.PoolOf(dataset), ""
	switch suggestion := (endpoint.Endpoint{Name: name}).WithoutPool(); {
	case !at.Local():
	case suggestion != "":
		hint = "for a host: " + suggestion + "\n"
	case at.IsKnownHost(pool):
		hint = "did you mean " + pool + ":POOL?\n"
	}
	return fault.Refusef(hint+"list its pools: "+at.Command("zpool", "list")+"\nlist pools to import: "+at.Command("zpool", "import"),
		"%s: no such pool: %s", at.Label(), pool)
}
