package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/testenv"
)

// logZFSCalls logs every call of zfs on both hosts until the test ends. The function that it
// returns lists the calls since its previous call.
func logZFSCalls(t *testing.T) func() []string {
	t.Helper()
	path, log := filepath.Join(labDir, "bin", "zfs"), filepath.Join(t.TempDir(), "calls")
	text := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%s\nexec %s \"$@\"\n", log, strings.TrimSpace(run(t, "sh", "-c", "command -v zfs")))
	testenv.WriteProgram(t, path, text)
	t.Cleanup(func() { require.NoError(t, os.Remove(path)) })
	return func() []string {
		text, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.Remove(log))
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
}

func snapshotListings(calls []string) (out []string) {
	for _, c := range calls {
		if strings.HasPrefix(c, "list ") && strings.Contains(c, "snapshot") {
			out = append(out, c)
		}
	}
	return out
}

// hasSnapshotsChanged reports whether OpenZFS has the property snapshots_changed.
func hasSnapshotsChanged() bool {
	return exec.Command("zfs", "get", "-H", "snapshots_changed", alphaPool).Run() == nil
}

// TestZFSReplicateUnchanged expects a run with nothing to do to list no snapshots on either
// side. If one dataset has changed, a run lists only that dataset's snapshots.
func TestZFSReplicateUnchanged(t *testing.T) {
	lab(t)
	if !hasSnapshotsChanged() {
		t.Skip("needs OpenZFS 2.2")
	}
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=none", src)
	run(t, "sh", "-c", "seq -w 30 | xargs -P 8 -I{} zfs create -u "+src+"/d{}")
	zfsCmd(t, "snapshot", "-r", src+"@s1")
	run(t, "sh", "-c", "zfs send -R "+src+"@s1 | zfs receive -u -o readonly=on "+dst)
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "many"
source = %q
recursive = true
snapshots = { adopt = ["s*"] }
retention = { last = 5 }
[[job.target]]
name = "near"
to = "beta:%s"
`, src, dst))
	at := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	nextSecond(t) // zxfer distrusts a listing that starts within two seconds of a change
	nextSecond(t)
	calls := logZFSCalls(t)
	r.mustRunAt(t, at, "run", "many")
	require.Len(t, snapshotListings(calls()), 1, "listings of the first run")

	r.mustRunAt(t, at, "run", "many")
	require.Empty(t, snapshotListings(calls()))
	require.Equal(t, 31, r.lastRun(t, "many").Targets[0].Unchanged)

	zfsCmd(t, "snapshot", src+"/d07@s2")
	r.mustRunAt(t, at, "run", "many")
	got := snapshotListings(calls())
	require.Len(t, got, 1, "listings after a change")
	for _, c := range got {
		require.True(t, strings.HasSuffix(c, "/d07"), c)
	}
	last := r.lastRun(t, "many").Targets[0]
	require.Equal(t, []int{1, 30}, []int{last.Sent, last.Unchanged})
	require.Equal(t, guids(t, src+"/d07"), guids(t, dst+"/d07"))

	// The record in the pool survives an export, and a later change is detected.
	run(t, "zpool", "export", betaPool)
	run(t, "zpool", "import", "-d", filepath.Join(labDir, "disk"), betaPool)
	zfsCmd(t, "release", replicate.Tag("many", "near"), dst+"/d08@s1")
	zfsCmd(t, "destroy", dst+"/d08@s1")
	o := r.runAt(t, at, "run", "many")
	require.Equal(t, 1, o.code, "%s", o)
	require.Contains(t, o.stderr, "d08", "the copy without snapshots")
	requireNoLeftovers(t)
}
