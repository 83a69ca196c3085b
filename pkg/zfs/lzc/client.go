// Package lzc makes changes through libzfs_core: whole lists of snapshots,
// holds and bookmarks in one transaction, with an error number for each name
// instead of a message to guess from.
//
// The library is reached through pyzfs, OpenZFS' own Python binding, by a
// small helper process that stays; nothing is linked in. What libzfs_core
// does not know (the size of a resumed stream, names by GUID) goes to
// package zfsexec, and so does everything on hosts without pyzfs: that is the
// caller's choice when Start fails. Of streams it makes small ones only.
package lzc

import (
	"context"
	"errors"
	"fmt"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// Client is a zfsexec.Backend. Requests are served one at a time.
type Client struct {
	life  context.Context
	end   context.CancelFunc
	cli   *cli.CLI
	hello hello
	turn  chan struct{} // holds one token; who has it may use helper

	helper *helper // nil once it is of no more use
}

var _ cli.Backend = (*Client)(nil)

// Start starts the helper, which lives until Close or until ctx ends. The
// error says what is missing, of Python, pyzfs or ZFS: the command line then does
// the same, slower.
func Start(ctx context.Context) (*Client, error) {
	c := &Client{cli: cli.New(nil), turn: make(chan struct{}, 1)}
	c.life, c.end = context.WithCancel(ctx)
	h, greeting, err := startHelper(c.life, c.cli)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	c.helper, c.hello = h, greeting
	c.turn <- struct{}{}
	return c, nil
}

// Name says which release of pyzfs and Python is used.
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

// call makes one request. A helper that died while it had nothing to do is
// started again; one that dies at work may have done it or not, so that call
// fails and the next one starts a new helper.
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
	if err := context.Cause(c.life); err != nil {
		return errors.New("closed")
	}
	if c.helper == nil || c.helper.dead() {
		h, _, err := startHelper(c.life, c.cli)
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

// byPool sorts names by pool: a transaction is of one pool.
func byPool(names []string) map[string][]string {
	out := map[string][]string{}
	for _, n := range names {
		out[zfs.PoolOf(n)] = append(out[zfs.PoolOf(n)], n)
	}
	return out
}
