package lzc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// stream is a request to estimate one stream: flags with the names of pyzfs, and the steps
// whose sizes are added up.
type stream struct {
	Flags []string    `json:"flags"`
	Steps [][2]string `json:"steps"` // incremental source ("" for none) and snapshot
}

// translate translates a SendSpec without a token.
func translate(s zfs.SendSpec) stream {
	out := stream{Flags: []string{}}
	for _, f := range []struct {
		on   bool
		name string
	}{
		// zfs send -w implies the other flags, so an estimate must set them.
		{s.Flags.Raw, "raw"},
		{s.Flags.Raw || s.Flags.LargeBlocks, "large_blocks"},
		{s.Flags.Raw || s.Flags.Embedded, "embedded_data"},
		{s.Flags.Raw || s.Flags.Compressed, "compress"},
	} {
		if f.on {
			out.Flags = append(out.Flags, f.name)
		}
	}
	from := s.From
	if strings.HasPrefix(from, "@") || strings.HasPrefix(from, "#") {
		from = s.Dataset + from
	}
	for _, to := range append(slices.Clone(s.Through), s.To) {
		to = s.Dataset + "@" + to
		out.Steps = append(out.Steps, [2]string{from, to})
		from = to
	}
	return out
}

// Estimate returns the sizes of streams in bytes. Resumed streams need an incremental source
// by GUID, which only the command line can find.
func (c *Client) Estimate(ctx context.Context, specs []zfs.SendSpec) (sizes []uint64, err error) {
	streams, names := []stream{}, []string{}
	var resumed []zfs.SendSpec
	for _, s := range specs {
		if _, err := zfs.SendArgs(s); err != nil { // it checks names
			return nil, err
		}
		if s.Token != "" {
			resumed = append(resumed, s)
		} else {
			streams, names = append(streams, translate(s)), append(names, s.Dataset+"@"+s.To)
		}
	}
	var fresh, rest []uint64
	if len(streams) > 0 {
		err := c.call(ctx, zfs.OpEstimate, names[0], map[string]any{"op": "estimate", "streams": streams}, &fresh)
		if err != nil {
			return nil, zfsErrors(zfs.OpEstimate, names, err)
		}
	}
	if len(fresh) != len(streams) {
		return nil, fmt.Errorf("python helper: got %d estimates for %d streams", len(fresh), len(streams))
	}
	if rest, err = c.cli.Estimate(ctx, resumed); err != nil {
		return nil, err
	}
	for _, s := range specs {
		from := &fresh
		if s.Token != "" {
			from = &rest
		}
		sizes, *from = append(sizes, (*from)[0]), (*from)[1:]
	}
	return sizes, nil
}

// Snapshot takes either all snapshots in one transaction or none.
func (c *Client) Snapshot(ctx context.Context, snapshots []string) error {
	if len(snapshots) == 0 {
		return nil
	}
	if err := cli.CheckSnapshots(snapshots); err != nil {
		return err
	}
	request := map[string]any{"op": "snapshot", "names": snapshots}
	return zfsErrors(zfs.OpSnapshot, snapshots, c.call(ctx, zfs.OpSnapshot, snapshots[0], request, nil))
}

// Hold places a hold on each snapshot, pool by pool.
func (c *Client) Hold(ctx context.Context, tag string, snapshots []string) error {
	if err := cli.CheckHold(tag, snapshots); err != nil {
		return err
	}
	var errs []error
	for _, names := range byPool(snapshots) {
		errs = append(errs, c.hold(ctx, tag, names))
	}
	return errors.Join(errs...)
}

// hold skips snapshots that already have the tag. One of them fails the whole request, and the
// kernel names only the first.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.0/module/zfs/dsl_userhold.c#L104
func (c *Client) hold(ctx context.Context, tag string, names []string) error {
	for len(names) > 0 {
		var missing []string
		request := map[string]any{"op": "hold", "tag": tag, "names": names}
		err := c.call(ctx, zfs.OpHold, names[0], request, &missing)
		var f *failures
		if errors.As(err, &f) {
			if held, rest := f.without(zfs.OpHold, zfs.Exists); rest == nil {
				if left := without(names, held); len(left) < len(names) {
					names = left
					continue
				}
			}
		}
		if err == nil && len(missing) > 0 {
			f = &failures{}
			for _, m := range missing {
				f.Failures = append(f.Failures, failure{Errno: int(syscall.ENOENT), Message: "dataset does not exist", Name: m})
			}
			err = f
		}
		return zfsErrors(zfs.OpHold, names, err)
	}
	return nil
}

func without(names, gone []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(gone, n) })
}

// Release removes the holds, pool by pool.
func (c *Client) Release(ctx context.Context, tag string, snapshots []string) error {
	if err := cli.CheckHold(tag, snapshots); err != nil {
		return err
	}
	return c.perPool(ctx, zfs.OpRelease, map[string]any{"op": "release", "tag": tag}, snapshots)
}

// perPool makes one request per pool. Missing names and pools are not errors.
func (c *Client) perPool(ctx context.Context, op string, request map[string]any, names []string) error {
	var errs []error
	for _, some := range byPool(names) {
		request["names"] = some
		err := c.call(ctx, op, some[0], request, nil)
		var f *failures
		if errors.As(err, &f) {
			if err = nil; f.drop(op, zfs.NotFound) {
				err = f
			}
		}
		errs = append(errs, zfsErrors(op, some, err))
	}
	return errors.Join(errs...)
}

// Bookmark creates all bookmarks of a pool in one transaction.
func (c *Client) Bookmark(ctx context.Context, bookmarks map[string]string) error {
	if err := cli.CheckBookmarks(bookmarks); err != nil {
		return err
	}
	var errs []error
	for _, names := range byPool(slices.Sorted(maps.Keys(bookmarks))) {
		some := map[string]string{}
		for _, b := range names {
			some[b] = bookmarks[b]
		}
		errs = append(errs, c.bookmark(ctx, some))
	}
	return errors.Join(errs...)
}

// bookmark skips existing bookmarks of the same snapshot. One of them fails the whole request.
func (c *Client) bookmark(ctx context.Context, bookmarks map[string]string) error {
	for {
		names := slices.Sorted(maps.Keys(bookmarks))
		if len(names) == 0 {
			return nil
		}
		request := map[string]any{"op": "bookmark", "bookmarks": bookmarks}
		err := c.call(ctx, zfs.OpBookmark, names[0], request, nil)
		var f *failures
		if !errors.As(err, &f) {
			return err
		}
		there, rest := f.without(zfs.OpBookmark, zfs.Exists)
		if rest != nil || len(there) == 0 {
			return zfsErrors(zfs.OpBookmark, names, err)
		}
		for _, b := range there {
			if err := c.cli.SameVersion(ctx, b, bookmarks[b], zfsErrors(zfs.OpBookmark, []string{b}, err)); err != nil {
				return err
			}
			delete(bookmarks, b)
		}
	}
}

// InheritKey makes a dataset inherit the key of its parent without rewrapping. So no key has
// to be loaded, but a different key would make the dataset unreadable. zfs receive does the
// same for a package of a tree.
//
// https://github.com/openzfs/zfs/blob/zfs-2.3.9/lib/libzfs/libzfs_sendrecv.c (recv_fix_encryption_hierarchy)
func (c *Client) InheritKey(ctx context.Context, dataset string) error {
	return c.changeKey(ctx, "inherit_key", dataset)
}

// MakeEncryptionRoot makes a dataset an encryption root without rewrapping its key. It undoes
// InheritKey.
func (c *Client) MakeEncryptionRoot(ctx context.Context, dataset string) error {
	return c.changeKey(ctx, "part_key", dataset)
}

func (c *Client) changeKey(ctx context.Context, op, dataset string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	request := map[string]any{"op": op, "names": []string{dataset}}
	return zfsErrors(zfs.OpChangeKey, []string{dataset}, c.call(ctx, zfs.OpChangeKey, dataset, request, nil))
}

// Destroy destroys the snapshots of each pool in one transaction, and then the bookmarks.
func (c *Client) Destroy(ctx context.Context, versions []string) error {
	snapshots, bookmarks, err := cli.GroupVersions(versions)
	if err != nil {
		return err
	}
	var full []string
	for ds, names := range snapshots {
		for _, n := range names {
			full = append(full, ds+"@"+n)
		}
	}
	slices.Sort(full)
	return errors.Join(
		c.perPool(ctx, zfs.OpDestroy, map[string]any{"op": "destroy_snapshots"}, full),
		c.perPool(ctx, zfs.OpDestroy, map[string]any{"op": "destroy_bookmarks"}, bookmarks),
	)
}
