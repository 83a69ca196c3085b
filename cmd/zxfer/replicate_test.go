package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Commands to paste name the job file and the state directory that were given.
func TestReplicateFlags(t *testing.T) {
	t.Parallel()
	require.Empty(t, (&replicateOptions{}).flags())
	require.Empty(t, (&replicateOptions{file: defaultJobFile, stateDir: defaultStateDir}).flags())
	require.Equal(t, " --config 'my jobs.toml' --state-dir /srv/state", (&replicateOptions{file: "my jobs.toml", stateDir: "/srv/state"}).flags())
}
