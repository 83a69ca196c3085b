// Package lzc changes ZFS through libzfs_core: a whole list of snapshots, holds or bookmarks in
// one transaction, with an error number for each name instead of a message to parse.
//
//   - helper: a Python process that calls libzfs_core through pyzfs, OpenZFS' Python binding.
//     Nothing is linked in.
//   - Client: a cli.Backend that sends requests to a helper, one at a time.
//   - failure: the error number that libzfs_core returns for one name of a request.
//
// It sends only small incremental streams. For requests that libzfs_core does not support (size
// of a resumed stream, names by GUID), it runs the command line through package cli. If pyzfs is
// missing, Start fails, and the caller uses package cli instead.
package lzc

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Client is a cli.Backend. It serves requests one at a time.
type Client struct {
	ctx   context.Context
	end   context.CancelFunc
	cli   *cli.CLI
	hello versions
	turn  chan struct{} // holds one token; its owner may use helper

	helper *helper // nil after it failed
}

var _ cli.Backend = (*Client)(nil)

// Start starts the helper, which runs until Close or until ctx ends. If Python, pyzfs or ZFS
// is missing, the error names it.
func Start(ctx context.Context) (*Client, error) {
	c := &Client{cli: cli.New(nil), turn: make(chan struct{}, 1)}
	c.ctx, c.end = context.WithCancel(ctx)
	h, greeting, err := startHelper(c.ctx, c.cli)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	c.helper, c.hello = h, greeting
	c.turn <- struct{}{}
	return c, nil
}

// Name returns the versions of pyzfs and Python.
func (c *Client) Name() string {
	pyzfs := "pyzfs"
	if c.hello.PyZFS != "" {
		pyzfs += " " + c.hello.PyZFS
	}
	return fmt.Sprintf("libzfs_core (%s, python %s)", pyzfs, c.hello.Python)
}

// Close ends the helper.
func (c *Client) Close() error {
	c.end()
	return c.cli.Close()
}

// call makes one request. If the helper died while idle, call starts a new one. If it dies
// during a request, the request may or may not have been carried out: call returns an error,
// and the next call starts a new helper.
func (c *Client) call(ctx context.Context, op, subject string, request, result any) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("zfs %s %s: %w", op, subject, err)
	}
	select {
	case <-c.turn:
		defer func() { c.turn <- struct{}{} }()
	case <-ctx.Done():
		return fmt.Errorf("zfs %s %s: %w", op, subject, context.Cause(ctx))
	}
	err := c.request(ctx, request, result)
	var failed *failures
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		return failed
	}
	return fmt.Errorf("zfs %s %s: %w", op, subject, err)
}

func (c *Client) request(ctx context.Context, request, result any) error {
	if err := context.Cause(c.ctx); err != nil {
		return errors.New("closed")
	}
	if c.helper == nil || c.helper.hasExited() {
		h, _, err := startHelper(c.ctx, c.cli)
		if err != nil {
			return err
		}
		c.helper = h
	}
	err := c.helper.call(ctx, request, result)
	var failed *failures
	if err != nil && !errors.As(err, &failed) {
		c.helper.kill()
		c.helper = nil
	}
	return err
}

// byPool groups names by pool, because a transaction concerns one pool.
func byPool(names []string) map[string][]string {
	out := map[string][]string{}
	for _, n := range names {
		out[zfs.PoolOf(n)] = append(out[zfs.PoolOf(n)], n)
	}
	return out
}
