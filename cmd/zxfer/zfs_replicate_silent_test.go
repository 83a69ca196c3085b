package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestZFSReplicateSilentTarget expects that a host that does not answer delays neither the snapshots of the source nor,
// after it was given up, the other target.
func TestZFSReplicateSilentTarget(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/a")
	dir := t.TempDir()
	shell, speaks := filepath.Join(dir, "rsh"), filepath.Join(dir, "speaks")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\nwhile [ ! -e "+speaks+" ]; do sleep 0.1; done\nexit 255\n"), 0o700))
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "j"
source = "%[1]s/a"
transfer = { rsh = %[2]q }
retries = 0
snapshots = { take = "s%%Y%%m%%d-%%H%%M%%S" }
[[job.target]]
name = "near"
to = "%[1]s/near"
[[job.target]]
name = "far"
to = "silent.example:tank/a"
`, src, shell))
	now := time.Now()
	p := r.startAt(t, now, "run", "j")
	require.Eventually(t, func() bool { return p.ended() || len(snapshotNames(t, src+"/a")) == 1 }, testenv.Timeout(), 10*time.Millisecond)
	require.False(t, p.ended(), "%s", p.stderr)
	require.NoError(t, os.WriteFile(speaks, nil, 0o600))
	require.Equal(t, 1, p.wait(t).code)
	require.Len(t, snapshotNames(t, src+"/near"), 1)
	run := r.lastRun(t, "j")
	require.Equal(t, []int{1, 1}, []int{run.Snapshots, run.Targets[0].Sent})
	require.NotEmpty(t, run.Targets[1].Error)
}
