package cli_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// oldPool is a host whose zpool has no block cloning. Its messages are those of OpenZFS 2.3.9 for an unknown property,
// and lib/libzfs/libzfs_util.c of 2.1.15 has the same first line.
type oldPool struct {
	kernel
	clones int // queries for properties of block cloning
}

func (o *oldPool) Run(_ context.Context, argv []string) (cli.RunResult, error) {
	switch {
	case argv[0] != "zpool":
		return cli.RunResult{}, nil
	case slices.ContainsFunc(argv, func(s string) bool { return strings.Contains(s, "bclone") }):
		o.clones++
		return cli.RunResult{Status: 2, Stderr: "bad property list: invalid property 'bclonesaved'\nusage:\n\tget [-Hp] ...\n"}, nil
	}
	return cli.RunResult{Stdout: "tank\tguid\t7\t-\ntank\tdedupratio\t1.50\t-\n"}, nil
}

// TestPoolWithoutClones expects the properties that an old zpool has, and one refused query.
func TestPoolWithoutClones(t *testing.T) {
	t.Parallel()
	o := &oldPool{}
	c := cli.NewRemote(o, nil)
	defer c.Close()
	for range 2 {
		l, err := c.WithContext(t.Context()).List(t.Context(), zfs.ListQuery{Dataset: "tank"})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"guid": "7", "dedupratio": "1.50"}, l.Pool.Properties)
	}
	require.Equal(t, 1, o.clones)
}
