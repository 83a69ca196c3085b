package cli_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
)

// kernel is a host with a real kernel and tools that do nothing.
type kernel struct {
	runs [][]string
	ran  cli.RunResult
}

func (*kernel) Host() string { return "beta" }
func (*kernel) User() string { return "root" }

func (k *kernel) Run(ctx context.Context, argv []string) (cli.RunResult, error) {
	k.runs = append(k.runs, argv)
	return k.ran, exec.CommandContext(ctx, "true", argv[1:]...).Run()
}

// The kernel limits each argument, in addition to the total size.
func TestDestroyFitsAnArgument(t *testing.T) {
	t.Parallel()
	k := &kernel{}
	c := cli.NewRemote(k, nil)
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

// One busy snapshot makes a command fail. The error names it, not the first.
func TestDestroyNamesWhatIsBusy(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stderr string // captured from OpenZFS 2.3.9
		want         []string
	}{
		{"held", "cannot destroy snapshot pq/d@c: it's being held. Run 'zfs holds -r pq/d@c' to see holders.\n" +
			"cannot destroy snapshot pq/d@b: it's being held. Run 'zfs holds -r pq/d@b' to see holders.\n", []string{"pq/d@b", "pq/d@c"}},
		{"cloned", "cannot destroy 'pq/d@c': snapshot has dependent clones\nuse '-R' to destroy the following datasets:\npq/cl\n", []string{"pq/d@c"}},
		{"not said", "cannot destroy snapshots: dataset is busy\n", []string{"pq/d"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			k := &kernel{ran: cli.RunResult{Stderr: tt.stderr, Status: 1}}
			c := cli.NewRemote(k, nil)
			defer c.Close()
			err := c.Destroy(t.Context(), []string{"pq/d@a", "pq/d@b", "pq/d@c", "pq/d@d"})
			var named []string
			joined, ok := err.(interface{ Unwrap() []error })
			require.True(t, ok, "%v", err)
			for _, err := range flat(joined) {
				var e *zfs.Error
				require.ErrorAs(t, err, &e)
				require.Equal(t, zfs.Busy, e.Kind)
				require.Equal(t, "beta", e.Host)
				named = append(named, e.Subject)
			}
			require.Equal(t, tt.want, named)
		})
	}
}

// flat returns joined errors, recursively.
func flat(joined interface{ Unwrap() []error }) (out []error) {
	for _, err := range joined.Unwrap() {
		if inner, ok := err.(interface{ Unwrap() []error }); ok {
			out = append(out, flat(inner)...)
		} else {
			out = append(out, err)
		}
	}
	return out
}
