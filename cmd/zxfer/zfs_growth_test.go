package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/send"
	"zxfer/pkg/preflight"
	"zxfer/pkg/zfs"
)

// moduleRelease returns the release of the loaded kernel module.
func moduleRelease(t *testing.T) zfs.Release {
	t.Helper()
	b, err := os.ReadFile("/sys/module/zfs/version")
	require.NoError(t, err)
	v, ok := zfs.ParseRelease(strings.TrimSpace(string(b)))
	require.True(t, ok)
	return v
}

// sendReport decodes what send --json printed.
func sendReport(t *testing.T, o cmdResult) *send.Report {
	t.Helper()
	var r send.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o.String())
	return &r
}

// noted returns the summary of a check's note, "" if there is none.
func noted(r *send.Report, check string) string {
	for _, f := range r.Findings {
		if f.ID == check && f.Severity == finding.Note {
			return f.Summary
		}
	}
	return ""
}

// bytesOf returns the number that a property has.
func bytesOf(t *testing.T, property, dataset string) float64 {
	t.Helper()
	value, _ := get(t, property, dataset)
	n, err := strconv.ParseFloat(value, 64)
	require.NoError(t, err)
	return n
}

// TestZFSGrowth sends cloned and deduplicated files below a dataset with copies=2, and expects the space that the dry
// run states.
func TestZFSGrowth(t *testing.T) {
	lab(t)
	_, dst := dataset(t)
	const pool = "zxgrowth"
	newFilePool(t, pool)
	const src = pool + "/src"
	dir := t.TempDir()
	zfsCmd(t, "create", "-o", "mountpoint="+dir, src)
	zfsCmd(t, "create", "-o", "dedup=on", src+"/dedup")
	zfsCmd(t, "create", "-o", "copies=2", dst)
	fill(t, src, "a", 8<<20)
	run(t, "zpool", "sync", pool)
	cloning := !moduleRelease(t).Before(zfs.Release{2, 3, 0}) // 2.2 clones only on request
	if cloning {
		run(t, "cp", "--reflink=always", filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	}
	fill(t, src+"/dedup", "a", 4<<20)
	for _, copied := range []string{"b", "c"} {
		run(t, "dd", "if="+filepath.Join(dir, "dedup", "a"), "of="+filepath.Join(dir, "dedup", copied), "bs=128k", "status=none")
	}
	zfsCmd(t, "snapshot", "-r", src+"@one")
	run(t, "zpool", "sync", pool)

	args := []string{"send", "-R", src, "beta:" + dst + "/copy"}
	r := sendReport(t, mustZxfer(t, append(args, "-n", "--json")...))
	require.Equal(t, preflight.About, r.Growth.Bound)
	require.Equal(t, []string{"copies=2 on the target"}, r.Growth.Reasons)
	require.Equal(t, dst, r.Growth.Target)
	require.InDelta(t, bytesOf(t, "available", dst), *r.Growth.Available, 8<<20)
	require.Equal(t, cloning, strings.Contains(noted(r, "clones"), "which pool "+pool+" stores once: up to 8.0 MiB"), "%q", noted(r, "clones"))
	require.Contains(t, noted(r, "dedup"), "(ratio 3.00), and the copy does not: "+src+"/dedup")
	require.Contains(t, mustZxfer(t, append(args, "-n")...).stdout, "growth\n  "+dst+": about ")

	mustZxfer(t, args...)
	run(t, "zpool", "sync", betaPool)
	require.InEpsilon(t, float64(r.Growth.Bytes), bytesOf(t, "used", dst+"/copy"), 0.05)

	r = sendReport(t, mustZxfer(t, append(args, "-n", "--json")...))
	require.Nil(t, r.Growth, "nothing to send")
	require.Empty(t, noted(r, "clones")+noted(r, "dedup"))

	const two = pool + "/two"
	zfsCmd(t, "create", "-o", "copies=2", "-o", "mountpoint="+t.TempDir(), two)
	fill(t, two, "a", 8<<20)
	run(t, "zpool", "sync", pool)
	r = sendReport(t, mustZxfer(t, "send", "-n", "--json", "--snapshot", "one", two, "beta:"+dst+"/two"))
	mustZxfer(t, "send", "--snapshot", "one", two, "beta:"+dst+"/two")
	run(t, "zpool", "sync", betaPool)
	require.InEpsilon(t, float64(r.Growth.Bytes), bytesOf(t, "used", dst+"/two"), 0.05)
}

// TestZFSRefquotaOfParent expects that a refquota of the target's parent does not limit the copy.
func TestZFSRefquotaOfParent(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 4<<20)
	zfsCmd(t, "snapshot", src+"@one")
	zfsCmd(t, "create", "-o", "refquota=1M", dst)
	mustZxfer(t, "send", src, "beta:"+dst+"/copy")
	zfsCmd(t, "destroy", "-r", dst+"/copy")
	zfsCmd(t, "set", "refquota=none", "quota=2M", dst)
	o := zxfer(t, "send", src, "beta:"+dst+"/copy")
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "available, but the transfer needs about")
}

// TestZFSRewrite expects a note about an increment after zfs rewrite, and that an increment after zfs rewrite -P is
// much smaller than its estimate.
func TestZFSRewrite(t *testing.T) {
	lab(t)
	release := moduleRelease(t)
	if release.Before(zfs.Release{2, 3, 4}) {
		t.Skip("OpenZFS 2.3.4 and later have zfs rewrite")
	}
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 70<<20)
	step := func(snapshot string) *send.Report {
		t.Helper()
		run(t, "zpool", "sync", alphaPool)
		zfsCmd(t, "snapshot", src+"@"+snapshot)
		return sendReport(t, mustZxfer(t, "send", "-n", "--json", src, "beta:"+dst))
	}
	require.Empty(t, noted(step("one"), "rewritten"))
	mustZxfer(t, "send", src, "beta:"+dst)

	file := filepath.Join(mountpoint(t, src), "a")
	zfsCmd(t, "rewrite", file)
	r := step("two")
	require.Contains(t, noted(r, "rewritten"), "as after zfs rewrite without -P: "+src)
	require.Equal(t, preflight.About, r.Growth.Bound)
	require.Greater(t, r.Growth.Bytes, uint64(70<<20))
	sent := sendReport(t, mustZxfer(t, "send", "--json", src, "beta:"+dst))
	require.InEpsilon(t, float64(r.Growth.Bytes), float64(sent.Bytes), 0.05)

	if exec.Command("zfs", "rewrite", "-P", file).Run() != nil {
		require.True(t, release.Before(zfs.Release{2, 4, 0}))
		return
	}
	r = step("three")
	require.Contains(t, noted(r, "rewritten"), "their streams omit blocks that zfs rewrite -P moved: "+src)
	require.Equal(t, preflight.AtMost, r.Growth.Bound)
	require.Greater(t, r.Growth.Bytes, uint64(70<<20))
	zfsCmd(t, "set", "quota=180M", dst) // less than the estimate leaves: no reason to refuse
	sent = sendReport(t, mustZxfer(t, "send", "--json", src, "beta:"+dst))
	require.Less(t, sent.Bytes, uint64(1<<20))
}

// TestZFSDnodesize expects a note about increments of a filesystem with large dnodes.
func TestZFSDnodesize(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	const defect = "if dnodesize of a source filesystem ever changed"
	next := func(snapshot string) string {
		t.Helper()
		fill(t, src, snapshot, 1<<20)
		zfsCmd(t, "snapshot", src+"@"+snapshot)
		run(t, "zpool", "sync", alphaPool)
		return mustZxfer(t, "send", "-n", src, "beta:"+dst).stdout
	}
	require.NotContains(t, next("two"), defect)
	zfsCmd(t, "set", "dnodesize=1k", src)
	require.Contains(t, next("three"), defect)
}
