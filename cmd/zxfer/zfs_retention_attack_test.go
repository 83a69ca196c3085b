package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// setClock sets the kernel's clock, and with it the times of new snapshots. Only tests in a
// guest may do this.
func setClock(t *testing.T, at time.Time) {
	t.Helper()
	tv := unix.NsecToTimeval(at.UnixNano())
	require.NoError(t, unix.Settimeofday(&tv))
}

// requireOwnClock skips the test unless it runs in a guest, and corrects the clock after the
// test.
func requireOwnClock(t *testing.T) {
	t.Helper()
	cpu, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	if !strings.Contains(string(cpu), "User Mode Linux") {
		t.Skip("sets the kernel's clock: runs only in a guest")
	}
	began := time.Now()
	t.Cleanup(func() { setClock(t, began.Round(0).Add(time.Since(began))) })
}

// TestZFSRetentionWithForgedDates sends snapshots with false dates with an append-only key,
// and expects the target's job to keep all 30 good snapshots. pkg/replicate tests other
// histories.
func TestZFSRetentionWithForgedDates(t *testing.T) {
	lab(t)
	requireOwnClock(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "create", "-o", "canmount=off", target)
	rsh, _ := restrictedKey(t, "--allow", "receive="+target, "--append-only")
	now := time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour)
	take := func(at time.Time, name string) {
		setClock(t, at)
		zfsCmd(t, "snapshot", source+"@"+name)
	}
	send := func(name string) {
		setClock(t, now)
		mustZxfer(t, "send", "-e", rsh, source+"@"+name, "beta:"+target+"/web1")
	}
	r := newReplication(t, fmt.Sprintf(`
[[job]]
name = "vault"
source = "%s/web1"
snapshots = { adopt = ["*"] }
retention = { last = 10, daily = 30 }
`, target))
	var good []string
	for i := range 30 {
		good = append(good, fmt.Sprintf("good%02d", i))
		take(now.AddDate(0, 0, i-30), good[i])
	}
	send(good[29])
	goodNames := func() (out []string) {
		for _, n := range snapshotNames(t, target+"/web1") {
			if slices.Contains(good, n) {
				out = append(out, n)
			}
		}
		return out
	}
	r.mustRunAt(t, now, "prune", "vault")
	require.Equal(t, good, goodNames())
	last := ""
	for i := range 12 {
		at := now.AddDate(i%2*2-1, 0, 13*i) // next year, last year
		if i%5 == 0 {
			at = now.AddDate(0, 0, -i-2)
		}
		last = fmt.Sprintf("fake%02d", i)
		take(at, last)
	}
	send(last)
	o := r.mustRunAt(t, now.Add(time.Minute), "check", "vault")
	require.Contains(t, o.stdout, "with implausible dates")
	for i := range 2 {
		r.mustRunAt(t, now.Add(time.Duration(i)*time.Hour), "run", "vault")
		require.Equal(t, good, goodNames(), "good snapshots were destroyed")
	}
	o = r.mustRunAt(t, now.Add(6*time.Hour), "status", "vault")
	require.Contains(t, o.stdout, "retention ignores the dates of")
}

// TestZFSRetentionLimit changes a policy so that a run would destroy more snapshots than
// prune_limit allows. TestPruneLimit of pkg/replicate/runner tests the other verbs.
func TestZFSRetentionLimit(t *testing.T) {
	lab(t)
	source, _ := dataset(t)
	zfsCmd(t, "create", source)
	job := `
[[job]]
name = "grid"
source = %q
prune_limit = 3
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
retention = { last = %d }
`
	r := newReplication(t, fmt.Sprintf(job, source, 9))
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for i := range 8 {
		zfsCmd(t, "snapshot", at.Add(time.Duration(i)*time.Hour).Format(source+"@grid-20060102T150405Z"))
	}
	at = at.Add(8 * time.Hour)
	r.mustRunAt(t, at, "run", "grid")
	have := snapshotNames(t, source)
	require.Len(t, have, 9)
	r.write(t, fmt.Sprintf(job, source, 2))
	o := r.runAt(t, at, "prune", "grid")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "prune_limit is 3 per run")
	require.Contains(t, o.stderr, "zxfer replicate prune --beyond-limit grid --config "+r.file+" --state-dir "+r.state)
	require.Equal(t, have, snapshotNames(t, source))
	r.mustRunAt(t, at, "prune", "--beyond-limit", "grid")
	require.Len(t, snapshotNames(t, source), 2)
}
