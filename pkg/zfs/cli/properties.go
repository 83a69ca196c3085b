package cli

import (
	"context"
	"crypto/rand"
	"maps"
	"strings"

	"zxfer/pkg/zfs"
)

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
	for batch := range chunks(names, maxArgv) {
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
			if into[name] == nil && len(props) > 0 {
				into[name] = map[string]zfs.Property{}
			}
			maps.Copy(into[name], props)
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
