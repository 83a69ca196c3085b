package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
)

// Commands to paste name the job file and the state directory that were given.
func TestReplicateFlags(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&replicateOptions{}).flags())
	require.Empty(t, (&replicateOptions{file: defaultJobFile, stateDir: defaultStateDir}).flags())
	require.Equal(t, " --config 'my jobs.toml' --state-dir /srv/state", (&replicateOptions{file: "my jobs.toml", stateDir: "/srv/state"}).flags())
}

// What init writes is a job as it is, and one with all that it shows in comments.
// Of runs that follow each other within an hour none removes what another made.
func TestInitialJob(t *testing.T) {
	t.Parallel()
	for answered, off := range map[string]string{"tank/vm\n\nbeta:vault\n\n": "none", "tank/vm\n\n\n\n": "parallel"} {
		text, err := interview(strings.NewReader(answered), io.Discard)
		require.NoError(t, err)
		shown := regexp.MustCompile(`(?m)^#(\[|[a-z_]+ = )`).ReplaceAllString(strings.ReplaceAll(text, "#"+off, "# "+off), "$1")
		require.NotEqual(t, text, shown)
		for _, text := range []string{text, shown} {
			f, err := replicate.Parse("x", []byte(text))
			require.NoError(t, err, text)
			j := f.Jobs[0]
			grids := []*replicate.Grid{j.Retention}
			for i := range j.Targets {
				grids = append(grids, j.Targets[i].Retention)
			}
			for _, g := range grids {
				var points []replicate.Point
				for i := range 10 {
					points = append(points, replicate.Point{Name: fmt.Sprint(i), Time: time.Unix(1e9+int64(i), 0), Order: uint64(i)})
				}
				require.Len(t, g.Keep(points), 10)
			}
		}
	}
}
