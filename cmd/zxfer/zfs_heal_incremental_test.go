package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/heal"
	"zxfer/pkg/testenv"
)

// TestZFSHealIncremental damages files that are newer than @a, and expects an incremental
// send since @a to heal them. The list of errors does not name the snapshots that share the
// damage.
func TestZFSHealIncremental(t *testing.T) {
	lab(t)
	if oldZFS(t) {
		t.Skip("needs OpenZFS 2.2")
	}
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxsince")
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	plain, locked := s.pool+"/plain", s.pool+"/locked"
	key := filepath.Join(s.dir, "key")
	run(t, "dd", "if=/dev/urandom", "of="+key, "bs=32", "count=1", "status=none")
	zfsCmd(t, "create", plain)
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, locked)
	sums := map[string]string{}
	for _, d := range []string{plain, locked} {
		fill(t, d, "old", 8<<20)
	}
	zfsCmd(t, "snapshot", "-r", s.pool+"@a")
	for _, d := range []string{plain, locked} {
		fill(t, d, "new", 1<<20)
		f := filepath.Join(mountpoint(t, d), "new")
		sums[f] = fileDigest(t, f)
		s.markFile(t, d, f)
	}
	zfsCmd(t, "snapshot", "-r", s.pool+"@b")
	zfsCmd(t, "snapshot", "-r", s.pool+"@c")
	for _, d := range []string{plain, locked} {
		mustZxfer(t, "send", d, "beta:"+dst+"/"+filepath.Base(d))
	}
	s.damage(t)
	zfsCmd(t, "load-key", locked)
	zfsCmd(t, "mount", locked)
	list := func() string {
		return zfsCmd(t, "list", "-H", "-r", "-t", "snapshot", "-o", "name,guid,inconsistent", s.pool, dst)
	}
	before := list()
	t.Log(run(t, "zpool", "status", "-v", s.pool))
	r := healReport(t, mustZxfer(t, "heal", "-n", "--json", s.pool, "beta:"+dst))
	require.Len(t, r.Datasets, 2)
	for _, d := range r.Datasets {
		require.Equal(t, "a", d.Since, d)
		require.Less(t, d.Bytes, uint64(3<<20))
		require.Greater(t, d.FullBytes, uint64(8<<20))
	}
	// A heal refuses a copy that is receiving another stream.
	fill(t, plain, "newer", 1<<20)
	zfsCmd(t, "snapshot", plain+"@d")
	cmd := exec.Command("bash", "-c", fmt.Sprintf("zfs send -i @c %s@d | (head -c 100000; sleep infinity) | zfs receive -u %s/plain", plain, dst))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	stop := sync.OnceFunc(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	t.Cleanup(stop)
	require.Eventually(t, func() bool {
		return strings.Contains(zfsCmd(t, "get", "-H", "-o", "value", "clones", dst+"/plain@c"), "%recv")
	}, testenv.Timeout(), 200*time.Millisecond)
	o := zxfer(t, "heal", plain, "beta:"+dst+"/plain")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stdout, "partially received")
	stop()
	require.Eventually(t, func() bool {
		return !strings.Contains(zfsCmd(t, "get", "-H", "-o", "value", "clones", dst+"/plain@c"), "%recv")
	}, testenv.Timeout(), 200*time.Millisecond)
	zfsCmd(t, "destroy", plain+"@d")
	o = mustZxfer(t, "heal", "--json", s.pool, "beta:"+dst)
	r = healReport(t, o)
	for _, d := range r.Datasets {
		require.Equal(t, "a", d.Since, "incremental source")
	}
	for _, thing := range r.Objects {
		require.Equal(t, heal.Healed, thing.Outcome, thing)
		if thing.Snapshot == "" { // a file is read once, not in each snapshot
			require.Equal(t, "is readable again", thing.Read, thing)
		}
	}
	require.NotContains(t, o.stderr, `"planned"`)
	require.Contains(t, o.stderr, "is readable again: ")
	for f, want := range sums {
		require.Equal(t, want, fileDigest(t, f), f)
		require.Equal(t, want, fileDigest(t, filepath.Join(filepath.Dir(f), ".zfs/snapshot/b/new")))
	}
	require.Equal(t, before, list())
	require.Contains(t, run(t, "zpool", "status", s.pool), "No known data errors")
}
