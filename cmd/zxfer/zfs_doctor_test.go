package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job/doctor"
	"zxfer/pkg/job/send"
	"zxfer/pkg/testenv"
)

// doctor runs zxfer doctor on alpha and returns its report.
func doctorReport(t *testing.T, args ...string) doctor.Report {
	t.Helper()
	o := zxfer(t, append([]string{"doctor", "--json"}, args...)...)
	require.Contains(t, []int{0, 3}, o.code, o.String())
	var r doctor.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o.String())
	return r
}

// worstOf returns the most serious finding of a check.
func worstOf(t *testing.T, r doctor.Report, id string) (worst finding.Finding) {
	t.Helper()
	for _, f := range r.Findings {
		if f.ID == id && f.Severity.Compare(worst.Severity) > 0 {
			worst = f
		}
	}
	require.NotEmpty(t, worst.ID, "no finding of check %s in %+v", id, r.Findings)
	return worst
}

// shapeLink limits both directions of the link. The caller must remove the limit.
func shapeLink(t *testing.T, netem ...string) {
	t.Helper()
	run(t, append([]string{labScript(), "net"}, netem...)...)
}

// TestZFSDoctorImplementations compares the reported implementations with the module's
// parameters. The printed remedy corrects a slow choice.
func TestZFSDoctorImplementations(t *testing.T) {
	lab(t)
	module := func(name, before string) string { // OpenZFS 2.1 has several modules
		p := "/sys/module/zfs/parameters/" + name
		if _, err := os.Stat(p); err != nil {
			p = "/sys/module/" + before + "/parameters/" + name
		}
		return p
	}
	parameter := module("zfs_fletcher_4_impl", "zcommon")
	cat := func(p string) string {
		raw, err := os.ReadFile(p)
		require.NoError(t, err)
		return strings.TrimSpace(string(raw))
	}
	t.Cleanup(func() { _ = os.WriteFile(parameter, []byte("fastest"), 0o644) })
	r := doctorReport(t, "--quick")
	require.Contains(t, worstOf(t, r, "zfs-module").Summary, cat("/sys/module/zfs/version"))
	for id, p := range map[string]string{"fletcher": parameter, "aes": module("icp_aes_impl", "icp"), "gcm": module("icp_gcm_impl", "icp")} {
		f := worstOf(t, r, id)
		require.Equal(t, finding.OK, f.Severity, id)
		require.Contains(t, f.Evidence, p+": "+cat(p))
	}
	// The kernel's own benchmark decides which implementation is slow. On a busy machine
	// that may be any.
	slowest, least := "", uint64(math.MaxUint64)
	for line := range strings.Lines(cat("/proc/spl/kstat/zfs/fletcher_4_bench")) {
		fields := strings.Fields(line)
		if len(fields) != 3 || !slices.Contains(strings.Fields(cat(parameter))[1:], fields[0]) {
			continue
		}
		if v, err := strconv.ParseUint(fields[1], 10, 64); err == nil && v < least {
			slowest, least = fields[0], v
		}
	}
	require.NoError(t, os.WriteFile(parameter, []byte(slowest), 0o644))
	f := worstOf(t, doctorReport(t, "--quick"), "fletcher")
	require.Equal(t, finding.Warn, f.Severity, "%+v", f)
	run(t, "sh", "-c", f.Remedy)
	require.Equal(t, finding.OK, worstOf(t, doctorReport(t, "--quick"), "fletcher").Severity)
}

// TestZFSDoctorMeasures measures each part of a transfer, and sends with --measure.
// scripts/bench forecast shows how accurate the forecasts are.
func TestZFSDoctorMeasures(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 8<<20)
	zfsCmd(t, "snapshot", src+"@x")
	each := min(testenv.Scale(time.Second), 30*time.Second) // in less time, a busy machine measures nothing
	r := doctorReport(t, "--time", each.String(), "--only", "link,source-read,target-write", src, "beta:"+betaPool)
	require.NotNil(t, r.Expected)
	require.Positive(t, r.Expected.BytesPerSecond)
	require.Empty(t, r.Expected.Unmeasured)
	o := mustZxfer(t, "send", "--measure", "--json", src, "beta:"+dst)
	var sent send.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &sent))
	require.NotNil(t, sent.Expected, o.stdout)
	require.Empty(t, sent.Expected.Unmeasured)
	require.Len(t, sent.Results, 1)
	require.Equal(t, guids(t, src), guids(t, dst))
}

// TestZFSDoctorFindsProblems sets up common problems, and expects doctor to find them
// before a transfer.
func TestZFSDoctorFindsProblems(t *testing.T) {
	lab(t)
	t.Run("key not loaded", func(t *testing.T) {
		src, _ := dataset(t)
		encryptedDataset(t, src)
		zfsCmd(t, "snapshot", src+"@x")
		lockDataset(t, src)
		f := worstOf(t, doctorReport(t, "--quick", src, "beta:"+betaPool), "keystatus")
		require.Equal(t, finding.Note, f.Severity)
		require.Contains(t, f.Remedy, "zfs load-key "+src)
	})
	t.Run("overlapping mounts", func(t *testing.T) {
		src, dst := dataset(t)
		for _, d := range []string{src, dst} {
			zfsCmd(t, "create", d)
		}
		zfsCmd(t, "snapshot", src+"@x")
		point := mountpoint(t, dst)
		run(t, "mount", "-t", "zfs", "-o", "zfsutil", src, point)
		t.Cleanup(func() { _ = exec.Command("umount", point).Run() })
		require.Equal(t, finding.Warn, worstOf(t, doctorReport(t, "--quick", src, "beta:"+betaPool), "mounts").Severity)
	})
	t.Run("stale resume token", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "a", 8<<20)
		zfsCmd(t, "snapshot", src+"@x")
		_ = exec.Command("sh", "-c", fmt.Sprintf("zfs send %s@x | head -c 4000000 | zfs receive -s -u %s", src, dst)).Run()
		r := doctorReport(t, "--quick", src, "beta:"+betaPool)
		require.Contains(t, worstOf(t, r, "resume").Summary, dst)
		zfsCmd(t, "destroy", src+"@x")
		zfsCmd(t, "snapshot", src+"@y")
		require.Equal(t, finding.Warn, worstOf(t, doctorReport(t, "--quick", src, "beta:"+betaPool), "resume").Severity)
	})
	t.Run("stale holds", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		for _, snap := range []string{"@a", "@b"} {
			zfsCmd(t, "snapshot", src+snap)
			mustZxfer(t, "send", "--hold", "zxfer:job:beta", src+snap, "beta:"+dst)
		}
		zfsCmd(t, "snapshot", src+"@c")
		facts := filepath.Join(t.TempDir(), "facts")
		r := doctorReport(t, "--quick", "--capture", facts, src, "beta:"+dst)
		f := worstOf(t, r, "holds")
		require.Equal(t, finding.Note, f.Severity)
		require.Equal(t, "zfs release zxfer:job:beta "+src+"@a", f.Remedy)
		for i := range r.Findings { // facts do not hold the remote shell
			r.Findings[i].Remedy = strings.ReplaceAll(r.Findings[i].Remedy, "ssh -F "+labDir+"/ssh_config ", "ssh ")
		}
		require.Equal(t, r.Findings, doctorReport(t, "--facts", facts).Findings, "findings from the captured facts")
	})
	t.Run("unsupported nc", func(t *testing.T) {
		nc := filepath.Join(labDir, "bin", "nc")
		t.Cleanup(func() { _ = os.Remove(nc) })
		for dialect, script := range map[string]string{
			"traditional": "exec nc.traditional \"$@\"", "busybox": "exec busybox nc --help", "gnu": "echo 'GNU netcat 0.7.1, a rewrite of the famous networking tool.'",
		} {
			testenv.WriteProgram(t, nc, "#!/bin/sh\n"+script+"\n")
			f := worstOf(t, doctorReport(t, "--quick"), "netcat")
			require.NotEqual(t, finding.OK, f.Severity, dialect)
			require.Contains(t, strings.ToLower(f.Summary), dialect)
			require.Contains(t, f.Remedy, "netcat-openbsd")
		}
	})
}

// TestZFSDoctorCleansUpAfterInterrupt interrupts doctor at random moments and expects no leftovers.
func TestZFSDoctorCleansUpAfterInterrupt(t *testing.T) {
	lab(t)
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 32<<20)
	zfsCmd(t, "snapshot", src+"@x")
	run(t, "zpool", "sync")
	before := zfsCmd(t, "list", "-H", "-o", "name", "-t", "all")
	r := rand.New(rand.NewPCG(1, 2))
	for i := range randomRounds(t) {
		args := []string{"doctor", "--time", "200ms", "--only", "source-read,target-write,link,nc-zero,loopback-tls"}
		p := start(t, append(args, src, "beta:"+betaPool)...)
		time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
		_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended already
		o := p.wait(t)
		require.Contains(t, []int{-1, 0, 4}, o.code, "round %d: %s", i, o)
		requireNoLeftovers(t)
		require.Equal(t, before, zfsCmd(t, "list", "-H", "-o", "name", "-t", "all"), "round %d", i)
	}
}
