package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"zxfer/pkg/zfs"
)

// maxArgv bounds the names given to one command, in bytes. The kernel allows
// 2 MiB for arguments and environment together on a default stack.
const maxArgv = 512 << 10

// maxArg bounds one argument, in bytes.
//
// https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/binfmts.h (MAX_ARG_STRLEN)
const maxArg = 128<<10 - 1

// List surveys a dataset. It runs at most four processes, however many
// datasets there are, but for names that do not fit a command line and for an
// OpenZFS without what Changed asks for. A dataset that does not exist is no
// error: Datasets lacks it; a pool that does not exist is of kind NotFound.
func (c *CLI) List(ctx context.Context, q zfs.ListQuery) (zfs.Listing, error) {
	for _, n := range append([]string{q.Dataset}, q.Only...) {
		if _, err := zfs.ParseDataset(n); err != nil {
			return zfs.Listing{}, err
		}
	}
	if err := q.CheckUser(); err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: q.Dataset, Began: time.Now().Unix()}
	names := []string{q.Dataset}
	if len(q.Only) > 0 {
		names, q.Recursive = q.Only, false
	}
	var history map[string][]zfs.Version
	g, gctx := errgroup.WithContext(ctx)
	var above []string
	if !q.Alone {
		above = ancestors(q.Dataset)
		g.Go(func() (err error) {
			l.Pool, err = c.pool(gctx, zfs.PoolOf(q.Dataset))
			return err
		})
	}
	if q.Recursive && len(above) > 0 {
		g.Go(func() (err error) {
			l.Ancestors, err = c.survey(gctx, zfs.ListQuery{}, above)
			return err
		})
		g.Go(func() (err error) {
			l.Datasets, err = c.survey(gctx, q, names)
			return err
		})
	} else {
		g.Go(func() error {
			found, err := c.survey(gctx, q, slices.Concat(above, names))
			for _, d := range found {
				if slices.Contains(above, d.Name) {
					for _, p := range q.User { // which a grant of what is below does not tell
						delete(d.Properties, p)
					}
					l.Ancestors = append(l.Ancestors, d)
				} else {
					l.Datasets = append(l.Datasets, d)
				}
			}
			return err
		})
	}
	if q.Versions && !q.Newest {
		g.Go(func() (err error) {
			history, err = c.versions(gctx, q.Recursive, names)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return zfs.Listing{}, err
	}
	if q.Brief {
		l.ShortenAncestors()
	}
	if q.Newest {
		return l, c.newest(ctx, l.Datasets)
	}
	for _, d := range l.Datasets {
		d.Versions = history[d.Name]
	}
	return l, nil
}

// newest looks at the newest snapshot of each dataset.
func (c *CLI) newest(ctx context.Context, datasets []*zfs.Dataset) error {
	var names []string
	for _, d := range datasets {
		d.NewestOnly = true
		if name := d.Get(zfs.NewestProperty); strings.HasPrefix(name, d.Name+"@") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	found, err := c.Properties(ctx, names, []string{"guid", "createtxg"})
	if err != nil {
		return err
	}
	for _, d := range datasets {
		name := d.Get(zfs.NewestProperty)
		of, ok := found[name]
		if !ok {
			continue
		}
		v := zfs.Version{Kind: zfs.Snapshot, Name: strings.TrimPrefix(name, d.Name+"@")}
		if v.GUID, err = zfs.ParseGUID(of["guid"].Value); err != nil {
			return fmt.Errorf("guid of %s: %w", name, err)
		}
		if v.CreateTXG, err = strconv.ParseUint(of["createtxg"].Value, 10, 64); err != nil {
			return fmt.Errorf("createtxg of %s: %w", name, err)
		}
		d.Versions = []zfs.Version{v}
	}
	return nil
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

// survey reads the facts of datasets, in order of their names.
func (c *CLI) survey(ctx context.Context, o zfs.ListQuery, names []string) ([]*zfs.Dataset, error) {
	properties := zfs.SurveyProperties()
	switch {
	case o.Changed && !o.Versions:
		properties = zfs.ChangeProperties()
	case o.Changed:
		properties = append(properties, zfs.ChangedProperty)
	}
	if o.Newest {
		properties = append(properties, zfs.NewestProperty)
	}
	properties = append(properties, o.User...)
	var all []*zfs.Dataset
	for some := range chunks(names, maxArgv) {
		f := zfs.Failure{Op: zfs.OpGet, Subject: some[len(some)-1]}
		q := query(properties)
		out, err := c.zfsOutput(ctx, f, q.SurveyArgs(o.Recursive, some...))
		if o.Changed && errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) {
			properties = slices.DeleteFunc(properties, func(p string) bool { return p == zfs.ChangedProperty })
			q = query(properties)
			out, err = c.zfsOutput(ctx, f, q.SurveyArgs(o.Recursive, some...))
		}
		if err = butMissing(err); err != nil {
			return nil, err
		}
		found, err := q.ParseSurvey(out)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b *zfs.Dataset) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (c *CLI) versions(ctx context.Context, recursive bool, names []string) (map[string][]zfs.Version, error) {
	all := map[string][]zfs.Version{}
	for some := range chunks(names, maxArgv) {
		f := zfs.Failure{Op: zfs.OpList, Subject: some[0]}
		out, err := c.zfsOutput(ctx, f, zfs.ListVersionsArgs(recursive, some...))
		if err = butMissing(err); err != nil {
			return nil, err
		}
		found, err := zfs.ParseVersions(out)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, found)
	}
	return all, nil
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
	f := zfs.Failure{Op: e.Op, Subject: e.Subject, Argv: e.Argv, Stderr: strings.Join(rest, "\n"), User: UserName()}
	return f.Err()
}

// chunks parts names so that each part, with a byte behind each name, is shorter
// than most.
func chunks(names []string, most int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < len(names) && (n == 0 || size+len(names[n]) < most) {
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
		return "", fmt.Errorf("dataset of %q: it is not an absolute path", path)
	}
	f := zfs.Failure{Op: zfs.OpList, Subject: path}
	out, err := c.zfsOutput(ctx, f, []string{"list", "-Hp", "-o", "name", "-t", "filesystem", path})
	if err != nil {
		return "", err
	}
	return zfs.ParseDataset(strings.TrimSuffix(out, "\n"))
}
