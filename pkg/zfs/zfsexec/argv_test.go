package zfsexec_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/zfsexec"
)

// kernel is a host whose tools do nothing, but are started by a real kernel.
type kernel struct{ runs [][]string }

func (*kernel) Host() string { return "beta" }
func (*kernel) User() string { return "root" }

func (k *kernel) Run(ctx context.Context, argv []string) (zfsexec.Ran, error) {
	k.runs = append(k.runs, argv)
	return zfsexec.Ran{}, exec.CommandContext(ctx, "true", argv[1:]...).Run()
}

// The kernel bounds not only all arguments together, but each.
func TestDestroyFitsAnArgument(t *testing.T) {
	t.Parallel()
	k := &kernel{}
	c := zfsexec.NewElsewhere(k, nil)
	defer c.Close()
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprintf("tank/a@%s%04d", strings.Repeat("n", 200), i))
	}
	require.NoError(t, c.Destroy(t.Context(), names))
	var gone []string
	for _, argv := range k.runs {
		for _, n := range strings.Split(strings.TrimPrefix(argv[2], "tank/a@"), ",") {
			gone = append(gone, "tank/a@"+n)
		}
	}
	require.Equal(t, names, gone)
	require.Less(t, len(k.runs), 4)
}
