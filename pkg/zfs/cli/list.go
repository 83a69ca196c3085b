package cli

import (
	"context"
	"crypto/rand"
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

// List lists datasets. It runs at most four processes, unless the names exceed a command line or
// OpenZFS lacks the properties for Changed. The first list before OpenZFS 2.2 runs one more. If the
// dataset does not exist, Datasets is empty. If the pool does not exist, the error has kind NotFound.
func (c *CLI) List(ctx context.Context, q zfs.ListQuery) (zfs.Listing, error) {
	for _, n := range append([]string{q.Dataset}, q.Only...) {
		if _, err := zfs.ParseDataset(n); err != nil {
			return zfs.Listing{}, err
		}
	}
	if err := q.CheckUser(); err != nil {
		return zfs.Listing{}, err
	}
	l := zfs.Listing{Root: q.Dataset, Started: time.Now().Unix()}
	names := []string{q.Dataset}
	if len(q.Only) > 0 {
		names, q.Recursive = q.Only, false
	}
	var history map[string][]zfs.Version
	g, gctx := errgroup.WithContext(ctx)
	var above []string
	if !q.NoAncestors {
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
					for _, p := range q.User { // an agent that permits only the descendants must not see these
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

// newest sets the most recent snapshot of each dataset.
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

// ancestors returns the ancestors of a dataset, starting with the pool.
func ancestors(dataset string) []string {
	var out []string
	for i := range len(dataset) {
		if dataset[i] == '/' {
			out = append(out, dataset[:i])
		}
	}
	return out
}

// survey reads properties of datasets and sorts the result by name.
func (c *CLI) survey(ctx context.Context, o zfs.ListQuery, names []string) ([]*zfs.Dataset, error) {
	properties := zfs.SurveyProperties()
	switch {
	case o.Identity:
		properties = []string{"type", "guid"}
	case o.Changed && !o.Versions:
		properties = zfs.ChangeProperties()
	default:
		if o.Changed {
			properties = append(properties, zfs.ChangedProperty)
		}
		if !c.noLongname.Load() {
			properties = append(properties, zfs.LongnameProperty)
		}
	}
	if o.Newest {
		properties = append(properties, zfs.NewestProperty)
	}
	properties = append(properties, o.User...)
	var all []*zfs.Dataset
	for batch := range chunks(names, c.maxArgv()) {
		f := zfs.Failure{Op: zfs.OpGet, Subject: batch[len(batch)-1]}
		q := query(properties)
		out, err := c.zfsOutput(ctx, f, q.SurveyArgs(o.Recursive, batch...))
		for _, recent := range []string{zfs.LongnameProperty, zfs.ChangedProperty} { // OpenZFS 2.2 lacks the first, 2.1 both
			if !errors.Is(err, &zfs.Error{Kind: zfs.NotSupported}) || !slices.Contains(properties, recent) {
				continue
			}
			properties = slices.DeleteFunc(properties, func(p string) bool { return p == recent })
			q = query(properties)
			out, err = c.zfsOutput(ctx, f, q.SurveyArgs(o.Recursive, batch...))
			if recent == zfs.LongnameProperty {
				c.noLongname.Store(true)
			}
		}
		if err = ignoreMissing(err); err != nil {
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
	for batch := range chunks(names, c.maxArgv()) {
		f := zfs.Failure{Op: zfs.OpList, Subject: batch[0]}
		out, err := c.zfsOutput(ctx, f, zfs.ListVersionsArgs(recursive, batch...))
		if err = ignoreMissing(err); err != nil {
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

// DatasetOf returns the filesystem that contains an absolute path.
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

// Permitted returns the permissions that zfs allow gave to a user and its groups on a dataset. ZFS lets every
// account read them.
func (c *CLI) Permitted(ctx context.Context, dataset, user string, groups []string) (p zfs.Permitted, err error) {
	if _, err := zfs.ParseDataset(dataset); err != nil {
		return p, err
	}
	out, err := c.zfsOutput(ctx, zfs.Failure{Op: zfs.OpAllow, Subject: dataset}, []string{"allow", dataset})
	if err != nil {
		return p, err
	}
	return zfs.ParsePermitted(out, dataset, user, groups)
}

// Properties reads properties of datasets and versions by full name. It skips missing names. If
// properties is empty, it returns the locally set ones.
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
	for batch := range chunks(names, c.maxArgv()) {
		if err := c.properties(ctx, batch, properties, all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c *CLI) properties(ctx context.Context, names, properties []string, into map[string]map[string]zfs.Property) error {
	f := zfs.Failure{Op: zfs.OpGet, Subject: names[0]}
	local := len(properties) == 0
	if local {
		out, err := c.zfsOutput(ctx, f, zfs.LocalArgs(names))
		if err = ignoreMissing(err); err != nil {
			return err
		}
		if properties, err = zfs.ParseLocal(out); err != nil {
			return err
		}
	}
	for batch := range chunks(properties, maxQuery) {
		q := query(batch)
		out, err := c.zfsOutput(ctx, f, q.GetArgs(names))
		if err = ignoreMissing(err); err != nil {
			return err
		}
		found, err := q.Parse(out)
		if err != nil {
			return err
		}
		for name, props := range found {
			if local {
				maps.DeleteFunc(props, func(_ string, p zfs.Property) bool { return !p.Local() })
			}
			switch {
			case into[name] != nil:
				maps.Copy(into[name], props)
			case len(props) > 0:
				into[name] = props
			}
		}
	}
	return nil
}

// maxQuery limits the property names in one query, in bytes. With separators they are one argument.
const maxQuery = 8 << 10

func query(properties []string) zfs.Query {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // never fails
	return zfs.NewQuery(secret, properties...)
}

func checkAnyName(name string) error {
	if strings.ContainsAny(name, "@#") {
		_, _, err := zfs.ParseVersion(name)
		return err
	}
	_, err := zfs.ParseDataset(name)
	return err
}
