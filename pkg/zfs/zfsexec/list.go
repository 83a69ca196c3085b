package zfsexec

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/zfs"
)

// maxArgv bounds the names given to one command, in bytes. The kernel allows
// 2 MiB for arguments and environment together on a default stack.
const maxArgv = 512 << 10

// List surveys a dataset, with what is below it where recursive, and with
// snapshots and bookmarks where versions. It runs at most four processes,
// however many datasets there are. A dataset that does not exist is no error:
// Datasets is then empty; a pool that does not exist is of kind NotFound.
func (c *CLI) List(ctx context.Context, dataset string, recursive, versions bool) (zfs.Listing, error) {
	return c.list(ctx, dataset, recursive, versions, true)
}

// ListAlone is List without the pool and the ancestors, in at most two
// processes.
func (c *CLI) ListAlone(ctx context.Context, dataset string, recursive, versions bool) (zfs.Listing, error) {
	return c.list(ctx, dataset, recursive, versions, false)
}

func (c *CLI) list(ctx context.Context, dataset string, recursive, versions, around bool) (zfs.Listing, error) {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: dataset}
	var history map[string][]zfs.Version
	g, gctx := errgroup.WithContext(ctx)
	var above []string
	if around {
		above = ancestors(dataset)
		g.Go(func() (err error) {
			l.Pool, err = c.pool(gctx, zfs.PoolOf(dataset))
			return err
		})
	}
	if recursive && len(above) > 0 {
		g.Go(func() (err error) {
			l.Ancestors, err = c.survey(gctx, false, above...)
			return err
		})
		g.Go(func() (err error) {
			l.Datasets, err = c.survey(gctx, true, dataset)
			return err
		})
	} else {
		g.Go(func() error {
			found, err := c.survey(gctx, recursive, append(above, dataset)...)
			for _, d := range found {
				if slices.Contains(above, d.Name) {
					l.Ancestors = append(l.Ancestors, d)
				} else {
					l.Datasets = append(l.Datasets, d)
				}
			}
			return err
		})
	}
	if versions {
		g.Go(func() (err error) {
			history, err = c.versions(gctx, dataset, recursive)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return zfs.Listing{}, err
	}
	for _, d := range l.Datasets {
		d.Versions = history[d.Name]
	}
	return l, nil
}

// ancestors are the datasets above, the pool first.
func ancestors(dataset string) []string {
	var out []string
	for i := range len(dataset) {
		if dataset[i] == '/' {
			out = append(out, dataset[:i])
		}
	}
	return out
}

func (c *CLI) pool(ctx context.Context, pool string) (zfs.Pool, error) {
	out, err := c.output(ctx, zfs.Failure{Op: zfs.OpPool, Subject: pool}, c.zpool, zfs.PoolArgs(pool))
	if err != nil {
		return zfs.Pool{}, err
	}
	return zfs.ParsePool(out)
}

func (c *CLI) survey(ctx context.Context, recursive bool, names ...string) ([]*zfs.Dataset, error) {
	f := zfs.Failure{Op: zfs.OpGet, Subject: names[len(names)-1]}
	out, err := c.zfsOutput(ctx, f, zfs.SurveyArgs(recursive, names...))
	if err = butMissing(err); err != nil {
		return nil, err
	}
	return zfs.ParseSurvey(out)
}

func (c *CLI) versions(ctx context.Context, dataset string, recursive bool) (map[string][]zfs.Version, error) {
	f := zfs.Failure{Op: zfs.OpList, Subject: dataset}
	out, err := c.zfsOutput(ctx, f, zfs.ListVersionsArgs(dataset, recursive))
	if err = butMissing(err); err != nil {
		return nil, err
	}
	return zfs.ParseVersions(out)
}

// butMissing passes over the failure of a command that says nothing worse
// than that some of its names do not exist: zfs goes on with the others.
func butMissing(err error) error {
	return except(err, zfs.NotFound)
}

// except passes over the failure of a command each of whose messages is of
// one of the kinds; else it returns what remains.
func except(err error, kinds ...zfs.Kind) error {
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
	f := zfs.Failure{Op: e.Op, Subject: e.Subject, Argv: e.Argv, Stderr: strings.Join(rest, "\n"), User: userName()}
	return f.Err()
}

// Properties reads properties of datasets and versions by full name; names
// that do not exist are left out. With no properties it reads those that are
// set on each of the names itself.
func (c *CLI) Properties(ctx context.Context, names, properties []string) (map[string]map[string]zfs.Property, error) {
	all := map[string]map[string]zfs.Property{}
	for _, n := range names {
		if err := checkAnyName(n); err != nil {
			return nil, err
		}
	}
	for _, p := range properties {
		if err := zfs.CheckProperty(p); err != nil {
			return nil, err
		}
	}
	for some := range chunks(names) {
		f := zfs.Failure{Op: zfs.OpGet, Subject: some[0]}
		out, err := c.zfsOutput(ctx, f, zfs.GetArgs(properties, some))
		if err = butMissing(err); err != nil {
			return nil, err
		}
		props, err := zfs.ParseProperties(out)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, props)
	}
	return all, nil
}

func checkAnyName(name string) error {
	if strings.ContainsAny(name, "@#") {
		_, _, err := zfs.ParseVersion(name)
		return err
	}
	_, err := zfs.ParseDataset(name)
	return err
}

// chunks parts names so that each part fits a command line.
func chunks(names []string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < len(names) && (n == 0 || size+len(names[n]) < maxArgv) {
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

// DatasetOf returns the filesystem that holds an absolute path.
func (c *CLI) DatasetOf(ctx context.Context, path string) (string, error) {
	if !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("dataset of %q: it is no absolute path", path)
	}
	f := zfs.Failure{Op: zfs.OpList, Subject: path}
	out, err := c.zfsOutput(ctx, f, []string{"list", "-Hp", "-o", "name", "-t", "filesystem", path})
	if err != nil {
		return "", err
	}
	var name strings.Builder
	if _, err := out.WriteTo(&name); err != nil {
		return "", err
	}
	return zfs.ParseDataset(strings.TrimSuffix(name.String(), "\n"))
}
