package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestZFSHealMetadata damages metadata, which no copy can heal. The heal reports the reason
// and the remedy for each dataset, and heals everything else.
func TestZFSHealMetadata(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	s := newDamagedPool(t, "zxmeta")
	names := []string{"dnodes", "indirect", "removed"}
	for _, n := range names {
		d := s.pool + "/" + n
		zfsCmd(t, "create", "-o", "recordsize=16k", d)
		fill(t, d, "before", 100<<10)
		if n == "dnodes" {
			for i := range 200 {
				require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, d), fmt.Sprint(i)), []byte(fmt.Sprint(i)), 0o644))
			}
		}
		fill(t, d, "big", 1<<20)
		fill(t, d, "later", 100<<10)
		zfsCmd(t, "snapshot", d+"@a")
		mustZxfer(t, "send", d, dst+"/"+n)
		s.markFile(t, d, filepath.Join(mountpoint(t, d), "before"))
		s.markFile(t, d, filepath.Join(mountpoint(t, d), "later"))
	}
	s.mark(t, s.pool+"/dnodes", 0, "L0", 3)
	s.mark(t, s.pool+"/indirect", objectNumber(t, filepath.Join(mountpoint(t, s.pool+"/indirect"), "big")), "L1", 0)
	s.damage(t)
	require.NoError(t, os.Remove(filepath.Join(mountpoint(t, s.pool+"/removed"), "later")))
	before := listVersions(t, s.pool, dst)
	o := zxfer(t, "heal", s.pool, dst)
	require.Equal(t, 1, o.code, o)
	for _, n := range names {
		require.Contains(t, o.stdout, "  healed      /zxmeta/"+n+"/before\n")
	}
	require.Contains(t, o.stdout, "zxmeta/indirect: not completely healed: 2 blocks are healed, but metadata is also damaged")
	require.Contains(t, o.stdout, "zxfer restore "+dst+"/indirect@a zxmeta/indirect-restored\n")
	require.Contains(t, o.stdout, "  healed      /zxmeta/indirect/later\n")
	// ZFS does not list damage of dnodes, or of files that exist only in a snapshot.
	require.Contains(t, o.stderr, "the last scrub of zxmeta found 3 errors, but ZFS lists only 1: metadata or an older snapshot is damaged, too")
	require.Contains(t, o.stdout, "  not healed  /zxmeta/indirect/big (it is unreadable: ")
	require.Contains(t, o.stdout, "  zxfer restore --files /big "+dst+"/indirect@a ./restored\n")
	mustZxfer(t, "restore", dst+"/indirect@a", "zxmeta/indirect-restored")
	zfsCmd(t, "destroy", "-r", "zxmeta/indirect-restored")
	require.Equal(t, before, listVersions(t, s.pool, dst))

	// The remaining damage is only in a snapshot. ZFS does not list it, but the heal
	// reports it.
	zfsCmd(t, "destroy", "-r", "zxmeta/dnodes")
	zfsCmd(t, "destroy", "-r", "zxmeta/indirect")
	run(t, "zpool", "scrub", "-w", s.pool)
	// A scrub sometimes finds damage in blocks that are being freed. ZFS then lists
	// nothing.
	healUntilListed := func() (o cmdResult) {
		for range 8 {
			run(t, "zpool", "scrub", "-w", s.pool)
			if o = zxfer(t, "heal", s.pool, dst); o.code != 3 {
				break
			}
			require.Contains(t, o.stderr, "to a destroyed dataset")
		}
		return o
	}
	o = healUntilListed()
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stderr, "found 1 error that ZFS does not list")
	_, hint, _ := strings.Cut(o.stderr, "each error: zfs list")
	hint, _, _ = strings.Cut(hint, "\n")
	require.Equal(t, "zxmeta/removed@a\n", run(t, "sh", "-c", "(zfs list"+hint+") 2>/dev/null"))
	zfsCmd(t, "destroy", "zxmeta/removed@a")
	o = healUntilListed()
	require.Equal(t, 0, o.code, o)
	require.Contains(t, o.stdout, "no known errors")
}

// TestZFSHealDestroyedDatasets destroys a damaged dataset and a damaged snapshot after the
// scrub, and expects two more scrubs to clear their errors.
func TestZFSHealDestroyedDatasets(t *testing.T) {
	lab(t)
	_, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	s := newDamagedPool(t, "zxgone")
	intact, destroyed := s.pool+"/whole", s.pool+"/gone"
	for _, d := range []string{intact, destroyed} {
		zfsCmd(t, "create", d)
		fill(t, d, "one", 300<<10)
		zfsCmd(t, "snapshot", d+"@a")
		mustZxfer(t, "send", d, dst+"/"+filepath.Base(d))
	}
	s.markFile(t, destroyed, filepath.Join(mountpoint(t, destroyed), "one"))
	s.mark(t, intact+"@a", objectNumber(t, filepath.Join(mountpoint(t, intact), "one")), "L0", 1)
	require.NoError(t, os.Remove(filepath.Join(mountpoint(t, intact), "one")))
	s.damage(t)
	for _, d := range []string{destroyed, intact + "@a"} {
		zfsCmd(t, "destroy", "-r", d)
		run(t, "zpool", "sync", s.pool)
		o := zxfer(t, "heal", s.pool, dst)
		if oldZFS(t) {
			require.Equal(t, 3, o.code, o)
			require.Contains(t, o.stdout, "two scrubs clear it")
		} else { // it lists neither destroyed datasets nor files that exist only in a snapshot
			require.Equal(t, 1, o.code, o)
			// The scrubs of heal may have cleared the errors of the destroyed dataset already.
			cleared := d == destroyed && strings.Contains(o.stderr, "1 error is not healed")
			require.True(t, cleared || strings.Contains(o.stderr, "ZFS does not list"), o)
		}
	}
	run(t, "zpool", "scrub", "-w", s.pool)
	run(t, "zpool", "scrub", "-w", s.pool)
	require.Contains(t, mustZxfer(t, "heal", s.pool, dst).stdout, "no known errors")
}

// TestZFSHealFromDamagedCopy heals from a copy that is also damaged. Files that the copy
// can deliver are healed, and the others are reported.
func TestZFSHealFromDamagedCopy(t *testing.T) {
	healLab(t)
	a, b := newDamagedPool(t, "zxboth"), newDamagedPool(t, "zxbothcopy")
	src, dst := a.pool+"/ds", b.pool+"/ds"
	zfsCmd(t, "create", src)
	for _, f := range []string{"first", "both", "copys", "last"} {
		fill(t, src, f, 300<<10)
	}
	zfsCmd(t, "snapshot", src+"@a")
	fill(t, src, "newer", 300<<10)
	zfsCmd(t, "snapshot", src+"@b")
	mustZxfer(t, "send", src, dst)
	at := func(f string) string { return filepath.Join(mountpoint(t, src), f) }
	sums := map[string]string{}
	for _, f := range []string{"first", "both", "last", "newer"} {
		sums[f] = fileDigest(t, at(f))
	}
	a.marks(t, src, "L0", 1, objectNumber(t, at("first")), objectNumber(t, at("both")), objectNumber(t, at("last")), objectNumber(t, at("newer")))
	b.marks(t, dst, "L0", 1, objectNumber(t, at("both")), objectNumber(t, at("copys")))
	a.damage(t)
	b.damage(t)
	before := listVersions(t, src, dst)
	o := zxfer(t, "heal", src, dst)
	require.Equal(t, 1, o.code, o)
	require.Equal(t, before, listVersions(t, src, dst))
	require.Contains(t, o.stdout, dst+" is damaged")
	require.Contains(t, o.stdout, "  healed      "+at("first")+"\n")
	require.Equal(t, sums["first"], fileDigest(t, at("first")))
	require.Equal(t, sums["newer"], fileDigest(t, at("newer")))
	require.Contains(t, o.stdout, "  not healed  "+at("both")+"\n")

	// The stream ended before this file, so it is restored as a file.
	const printed = "zxfer restore --files /last "
	require.Contains(t, o.stdout, "  "+printed+dst+"@b ./restored\n")
	found := filepath.Join(t.TempDir(), "restored")
	run(t, "sh", "-c", "cd "+filepath.Dir(found)+" && "+alphaBin+strings.TrimPrefix(printed, "zxfer")+dst+"@b ./restored") // as printed
	require.Equal(t, sums["last"], fileDigest(t, filepath.Join(found, "last")))
	require.NotZero(t, zxfer(t, "restore", "--files", "/both", dst+"@b", found).code)
}

// TestZFSHealFullPool heals with a full copy and then with a full pool, and expects both
// failures to leave nothing behind.
func TestZFSHealFullPool(t *testing.T) {
	healLab(t)
	a, b := newDamagedPoolOfSize(t, "zxfull", 96<<20), newDamagedPoolOfSize(t, "zxfullcopy", 96<<20)
	src, dst := a.pool+"/ds", b.pool+"/ds"
	zfsCmd(t, "create", src)
	fill(t, src, "one", 1<<20)
	zfsCmd(t, "snapshot", src+"@a")
	mustZxfer(t, "send", src, dst)
	one := filepath.Join(mountpoint(t, src), "one")
	good := fileDigest(t, one)
	fill(t, src, "more", 8<<20) // the heal sends this to the copy with its snapshot
	a.markFile(t, src, one)
	a.damage(t)
	before := listVersions(t, src, dst)
	fillPool := func(pool string) {
		for i := range 200 {
			if os.WriteFile(fmt.Sprintf("/%s/junk%d", pool, i), make([]byte, 1<<20), 0o644) != nil {
				return
			}
			run(t, "zpool", "sync", pool)
		}
		t.Fatal("the pool is not full")
	}
	fillPool(b.pool)
	o := zxfer(t, "heal", src, dst)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout, "zxfullcopy has 0 B available")
	require.NotContains(t, o.stdout, "skip-check")
	require.Equal(t, before, listVersions(t, src, dst))
	run(t, "sh", "-c", "rm /"+b.pool+"/junk*")
	run(t, "zpool", "sync", b.pool)
	fillPool(a.pool)
	o = zxfer(t, "heal", src, dst)
	require.Equal(t, 1, o.code, o)
	require.Contains(t, o.stdout, "no space left")
	require.Equal(t, before, listVersions(t, src, dst))
	run(t, "sh", "-c", "rm /"+a.pool+"/junk*")
	run(t, "zpool", "sync", a.pool)
	mustZxfer(t, "heal", src, dst)
	require.Equal(t, good, fileDigest(t, one))
	require.Equal(t, before, listVersions(t, src, dst))
}

// TestZFSHealKeepsMounts heals datasets that are mounted in different ways or not at all, and
// expects their mounts to be unchanged.
func TestZFSHealKeepsMounts(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	zfsCmd(t, "create", "-o", "mountpoint=none", "-o", "canmount=off", dst)
	s := newDamagedPool(t, "zxmounts")
	legacy, noauto, unmounted := s.pool+"/legacy", s.pool+"/noauto", s.pool+"/unmounted"
	all := []string{legacy, noauto, unmounted}
	sums := map[string]string{}
	for _, d := range all {
		zfsCmd(t, "create", d)
		fill(t, d, "one", 1<<20)
		sums[d] = fileDigest(t, filepath.Join(mountpoint(t, d), "one"))
		zfsCmd(t, "snapshot", d+"@a")
		mustZxfer(t, "send", d, "beta:"+dst+"/"+filepath.Base(d))
		s.markFile(t, d, filepath.Join(mountpoint(t, d), "one"))
	}
	zfsCmd(t, "set", "mountpoint=legacy", legacy)
	zfsCmd(t, "set", "canmount=noauto", noauto)
	zfsCmd(t, "unmount", unmounted)
	s.damage(t)
	if zfsCmd(t, "get", "-H", "-o", "value", "mounted", unmounted) == "yes\n" {
		zfsCmd(t, "unmount", unmounted)
	}
	at := t.TempDir()
	run(t, "mount", "-t", "zfs", legacy, at)
	defer run(t, "umount", at)
	before := listVersions(t, s.pool, dst) + zfsCmd(t, "list", "-H", "-r", "-o", "name,mounted,mountpoint", s.pool)
	mustZxfer(t, "heal", s.pool, "beta:"+dst)
	require.Equal(t, before, listVersions(t, s.pool, dst)+zfsCmd(t, "list", "-H", "-r", "-o", "name,mounted,mountpoint", s.pool))
	zfsCmd(t, "mount", unmounted)
	zfsCmd(t, "mount", noauto)
	for d, want := range sums {
		dir := mountpoint(t, d)
		if d == legacy {
			dir = at
		}
		require.Equal(t, want, fileDigest(t, filepath.Join(dir, "one")), d)
	}
}

// TestZFSHealInterruptedScrub starts, pauses or cancels the scrub from outside, and expects the
// outcome "unknown". The printed commands lead to a complete heal.
func TestZFSHealInterruptedScrub(t *testing.T) {
	healLab(t)
	_, dst := dataset(t)
	s := newDamagedPool(t, "zxscrubs")
	src := s.pool + "/ds"
	zfsCmd(t, "create", src)
	fill(t, src, "one", 1<<20)
	zfsCmd(t, "snapshot", src+"@a")
	mustZxfer(t, "send", src, dst)
	suspend := func(v string) {
		t.Helper()
		require.NoError(t, os.WriteFile("/sys/module/zfs/parameters/zfs_scan_suspend_progress", []byte(v), 0o644))
	}
	t.Cleanup(func() { suspend("0") })
	for _, by := range []string{"", "-p", "-s"} {
		s.markFile(t, src, filepath.Join(mountpoint(t, src), "one"))
		s.damage(t)
		suspend("1")
		if by == "" {
			run(t, "zpool", "scrub", s.pool)
		}
		p := start(t, "heal", src, dst)
		if by != "" {
			require.Eventually(t, func() bool {
				return strings.Contains(run(t, "zpool", "status", s.pool), "scrub in progress")
			}, testenv.Timeout(), 100*time.Millisecond, "%s", p.stderr)
			run(t, "zpool", "scrub", by, s.pool)
		}
		o := p.wait(t)
		require.Equal(t, 1, o.code, o)
		require.Contains(t, o.stdout, "  unknown     ")
		require.NotContains(t, o.stdout, "by hand")
		suspend("0")
		for hint := range strings.Lines(o.stderr) {
			if command, ok := strings.CutPrefix(hint, "hint: "); ok {
				run(t, "sh", "-c", command)
			}
		}
		mustZxfer(t, "heal", src, dst)
	}
}
