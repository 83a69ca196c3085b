package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// listVersions lists all datasets and snapshots with the properties that a heal must not
// change.
func listVersions(t *testing.T, datasets ...string) string {
	t.Helper()
	return zfsCmd(t, append([]string{"list", "-H", "-r", "-t", "all", "-o", "name,guid,userrefs,clones,inconsistent,receive_resume_token,readonly"}, datasets...)...)
}

// TestZFSHealInterrupted kills each process of a heal and resets its connection while the good
// blocks arrive. The same command completes the heal and leaves nothing behind.
func TestZFSHealInterrupted(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxcut")
	src := s.pool + "/ds"
	zfsCmd(t, "create", src)
	fill(t, src, "one", 12<<20)
	zfsCmd(t, "snapshot", src+"@a")
	fill(t, src, "two", 1<<20)
	zfsCmd(t, "snapshot", src+"@b")
	mustZxfer(t, "send", src, "beta:"+dst)
	at := filepath.Join(mountpoint(t, src), "one")
	good, before := fileDigest(t, at), listVersions(t, src, dst)
	contents := func(snapshots ...string) {
		t.Helper()
		for _, v := range snapshots {
			dir := mountSnapshot(t, v)
			require.Equal(t, good, fileDigest(t, filepath.Join(dir, "one")), v)
			require.NoError(t, syscall.Unmount(dir, 0))
		}
	}
	s.markMany(t, src, objectNumber(t, at), 96) // all blocks, so each try is interrupted before the last is healed
	s.damage(t)
	args := []string{"heal", "--bwlimit", "2MiB", "--buffer", "1MiB", src, "beta:" + dst}
	isHealingReceive := func(argv []string) bool { return isZFS("receive")(argv) && slices.Contains(argv, "-c") }
	seen := []int{}
	interrupt := func(p *process, host string, is func([]string) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			pids := pidsOn(t, alphaPool, isHealingReceive)
			fresh := len(pids) > 0 && !slices.Contains(seen, pids[0])
			seen = append(seen, pids...)
			return fresh
		}, testenv.Timeout(), 20*time.Millisecond, "no new zfs receive -c: %s", p.stderr)
		waitReceived(t, p, alphaPool, isHealingReceive, 1<<20)
		if is == nil {
			resetConnections(t, p)
			return
		}
		pids := pidsOn(t, host, is)
		require.NotEmpty(t, pids, "%s", p.stderr)
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
	}
	isHeal := func(argv []string) bool { return filepath.Base(argv[0]) == "zxfer" && argv[1] == "heal" }

	// Kill the heal while the copy receives new data.
	fill(t, src, "new", 6<<20)
	p := start(t, args...)
	waitReceived(t, p, betaPool, isZFS("receive"), 1<<20)
	for _, pid := range pidsOn(t, alphaPool, isHeal) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	require.Equal(t, -1, p.wait(t).code)
	requireNoLeftovers(t)
	require.NotEqual(t, "-\n", zfsCmd(t, "get", "-H", "-o", "value", "receive_resume_token", dst))

	// Kill the heal while the good blocks arrive.
	p = start(t, args...)
	interrupt(p, alphaPool, isHeal)
	require.Equal(t, -1, p.wait(t).code)
	requireNoLeftovers(t)
	require.NotEqual(t, before, listVersions(t, src, dst), "the heal was killed before its first change")
	contents(dst+"@a", dst+"@b")

	// A run of the job refuses and names the running heal.
	r := newReplication(t, fmt.Sprintf("[[job]]\nname = \"j\"\nsource = %q\nsnapshots = { adopt = [\"*\"] }\n[[job.target]]\nname = \"t\"\nto = %q\n", src, "beta:"+dst))
	p = start(t, append(args, "--config", r.file, "--state-dir", r.state)...)
	require.Eventually(t, func() bool { return len(pidsOn(t, alphaPool, isHealingReceive)) > 0 }, testenv.Timeout(), 20*time.Millisecond, "%s", p.stderr)
	refused := r.runAt(t, time.Now(), "run", "j")
	require.Equal(t, 3, refused.code, refused)
	require.Regexp(t, `zxfer heal .*\(process \d+\) is running, and keeps the job from running`, refused.stderr)
	interrupt(p, alphaPool, isHealingReceive)
	interrupt(p, betaPool, isZFS("send"))
	interrupt(p, betaPool, isAgent)
	interrupt(p, "", nil)
	o := p.wait(t)
	require.Equal(t, 0, o.code, o)
	require.Equal(t, before, listVersions(t, src, dst))
	contents(src+"@a", src+"@b", dst+"@a", dst+"@b")
	require.Equal(t, good, fileDigest(t, at))
	require.Contains(t, run(t, "zpool", "status", s.pool), "No known data errors")

	// A heal that is killed after the repair leaves these snapshots.
	zfsCmd(t, "snapshot", src+"@zxfer-heal-killed")
	run(t, "sh", "-c", "zfs send -i @b "+src+"@zxfer-heal-killed | zfs receive "+dst)
	require.Contains(t, mustZxfer(t, args...).stderr, "removed "+src+"@zxfer-heal-killed")
	require.Equal(t, before, listVersions(t, src, dst))
	requireNoLeftovers(t)
}

// TestZFSHealRestricted heals with append-only keys. A heal succeeds only with all the
// grants that it needs.
func TestZFSHealRestricted(t *testing.T) {
	healLab(t)
	src, dst := dataset(t)
	s := newDamagedPool(t, "zxkeys")
	damaged, copied := s.pool+"/ds", s.pool+"/copy"
	for _, d := range []string{src, damaged} {
		zfsCmd(t, "create", d)
		fill(t, d, "one", 1<<20)
		zfsCmd(t, "snapshot", d+"@a")
	}
	mustZxfer(t, "send", src, copied)
	mustZxfer(t, "send", damaged, dst)
	one := filepath.Join(mountpoint(t, damaged), "one")
	good := fileDigest(t, one)
	s.markFile(t, damaged, one)
	s.mark(t, copied, objectNumber(t, filepath.Join(mountpoint(t, src), "one")), "L0", 0)
	s.damage(t)
	before := listVersions(t, src, dst, damaged, copied)
	for _, tt := range []struct {
		name, bad, good string
		grants          []string
		code            int
	}{
		{"source with receive", damaged, "beta:" + dst, []string{"receive=" + dst}, 3},
		{"source with receive send", damaged, "beta:" + dst, []string{"receive=" + dst, "send=" + dst}, 3},
		{"source with heal send", damaged, "beta:" + dst, []string{"heal=" + dst, "send=" + dst}, 1},
		{"source with heal receive", damaged, "beta:" + dst, []string{"heal=" + dst, "receive=" + dst}, 3},
		{"copy with receive", "beta:" + copied, src, []string{"receive=" + copied}, 3},
		{"copy with heal", "beta:" + copied, src, []string{"heal=" + copied}, 1},
		{"source with heal receive send", damaged, "beta:" + dst, []string{"heal=" + dst, "receive=" + dst, "send=" + dst}, 0},
		{"copy with heal receive", "beta:" + copied, src, []string{"heal=" + copied, "receive=" + copied}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			flags := []string{"--append-only"}
			for _, g := range tt.grants {
				flags = append(flags, "--allow", g)
			}
			rsh, _ := restrictedKey(t, flags...)
			o := startAs(t, []string{"ZXFER_RSH=" + rsh}, alphaBin, "heal", tt.bad, tt.good).wait(t)
			require.Equal(t, tt.code, o.code, o)
			if tt.code != 0 {
				require.Contains(t, o.stdout+o.stderr, "the agent's policy forbids it")
			}
			require.Equal(t, before, listVersions(t, src, dst, damaged, copied))
		})
	}
	require.Equal(t, good, fileDigest(t, one))
	zfsCmd(t, "mount", copied)
	requireSameFiles(t, src, copied)
}
