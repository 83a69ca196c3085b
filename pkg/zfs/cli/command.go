package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"zxfer/pkg/zfs"
)

// zfsOutput runs zfs to its end and returns its output, which is also valid with a *zfs.Error.
func (c *CLI) zfsOutput(ctx context.Context, f zfs.Failure, args []string) (string, error) {
	return c.output(ctx, f, c.zfs, args)
}

func (c *CLI) output(ctx context.Context, f zfs.Failure, tool string, args []string) (string, error) {
	if c.remote != nil {
		return c.outputRemote(ctx, f, tool, args)
	}
	out, _, err := c.outputs(ctx, f, tool, args)
	return out, err
}

// outputs is like output for local commands, and also returns standard error.
func (c *CLI) outputs(ctx context.Context, f zfs.Failure, tool string, args []string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	var out strings.Builder
	p, err := c.start(ctx, start{tool: tool, args: args, failure: f, stdout: &out})
	if err != nil {
		return "", "", err
	}
	err = p.wait()
	var failed *zfs.Error
	if err != nil && !errors.As(err, &failed) {
		return "", "", err // the child may still write to out
	}
	return out.String(), p.stderr.String(), err
}

// change runs zfs(8) with words followed by the dataset name.
func (c *CLI) change(ctx context.Context, op, dataset string, words ...string) error {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return err
	}
	_, err := c.zfsOutput(ctx, zfs.Failure{Op: op, Subject: dataset}, append(words, dataset))
	return err
}

// opError wraps errors that are not from ZFS, such as an ended context or a failed fork.
func opError(f zfs.Failure, err error) error {
	what := "zfs " + f.Op
	if f.Subject != "" {
		what += " " + f.Subject
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ignoreMissing ignores the failure of a command if it reports only missing names. zfs processes
// the other names.
func ignoreMissing(err error) error {
	return ignore(err, zfs.NotFound)
}

// ignore ignores the failure of a command if all of its messages have one of the kinds. Otherwise
// it returns an error with the remaining messages.
func ignore(err error, kinds ...zfs.Kind) error {
	var e *zfs.Error
	if !errors.As(err, &e) {
		return err
	}
	var rest []string
	dropped := false
	for line := range strings.Lines(e.Detail) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case slices.Contains(kinds, zfs.Classify(e.Op, line)):
			dropped = true
		default:
			rest = append(rest, line)
		}
	}
	if len(rest) == 0 && slices.Contains(kinds, e.Kind) {
		return nil
	}
	if len(rest) == 0 || !dropped {
		return err
	}
	f := zfs.Failure{Op: e.Op, Subject: e.Subject, Argv: e.Argv, Stderr: strings.Join(rest, "\n"), User: UserName()}
	return f.Err()
}

// maxArgv limits the names given to one command, in bytes. The kernel permits 2 MiB for arguments
// and environment together with a default stack.
const maxArgv = 512 << 10

// maxArg limits one argument in bytes.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/binfmts.h (MAX_ARG_STRLEN)
const maxArg = 128<<10 - 1

// chunks splits names into parts shorter than limit bytes, counting a separator after each name.
func chunks(names []string, limit int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < len(names) && (n == 0 || size+len(names[n]) < limit) {
				size += len(names[n]) + 1
				n++
			}
			if !yield(names[:n:n]) {
				return
			}
			names = names[n:]
		}
	}
}
