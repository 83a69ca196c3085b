package ends

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
)

// Resolve returns the dataset of a source that is a mounted path, and logs it. Otherwise it returns the name of the
// source, also with an error.
func (e *End) Resolve(ctx context.Context, source endpoint.Endpoint, log func(string)) (string, error) {
	if !source.Path() {
		return source.Name, nil
	}
	dataset, err := hosts.Call(ctx, e.Conn, hosts.OpDatasetOf, source.Name)
	if errors.Is(err, &zfs.Error{Kind: zfs.NotFound}) {
		err = fault.Refusef("name a dataset, or a path on a mounted ZFS filesystem\nto copy devices and image files, use zxfer dev",
			"%s is not on a ZFS filesystem", source)
	}
	if err != nil {
		return source.Name, err
	}
	log(fmt.Sprintf("%s is dataset %s", source, dataset))
	return dataset, nil
}

// Implausible exceeds the size of any stream: 2^60 bytes.
const Implausible = 1 << 60

// StreamSizes estimates the streams. With each, it bisects after a failure, so that one missing
// snapshot affects only its stream.
func (e *End) StreamSizes(ctx context.Context, specs []zfs.SendSpec, each bool) ([]uint64, error) {
	sizes, err := hosts.Estimate(ctx, e.Conn, specs)
	if err == nil || !each || !vanished(err) {
		return sizes, err
	}
	if len(specs) == 1 {
		return []uint64{0}, nil // sending it reports the cause
	}
	half := len(specs) / 2
	a, err := e.StreamSizes(ctx, specs[:half], each)
	if err != nil {
		return nil, err
	}
	b, err := e.StreamSizes(ctx, specs[half:], each)
	return append(a, b...), err
}

// vanished reports whether err may mean that a dataset, snapshot or incremental source was
// destroyed or renamed since the survey.
func vanished(err error) bool {
	for _, kind := range []zfs.Kind{zfs.NotFound, zfs.NoBase, zfs.BadToken} {
		if errors.Is(err, &zfs.Error{Kind: kind}) {
			return true
		}
	}
	return false
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
