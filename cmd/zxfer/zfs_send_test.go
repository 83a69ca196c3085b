package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
)

// encryptedDataset creates a dataset with its own key, which it returns.
func encryptedDataset(t *testing.T, name string) (keyFile string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "key")
	run(t, "dd", "if=/dev/urandom", "of="+keyFile, "bs=32", "count=1", "status=none")
	zfsCmd(t, "create", "-o", "encryption=aes-256-gcm", "-o", "keyformat=raw", "-o", "keylocation=file://"+keyFile, name)
	return keyFile
}

// lock unmounts an encrypted dataset and unloads its key, which stays busy for
// a moment after the unmount.
func lock(t *testing.T, name string) {
	t.Helper()
	zfsCmd(t, "unmount", name)
	require.Eventually(t, func() bool { return exec.Command("zfs", "unload-key", name).Run() == nil }, 10*time.Second, 100*time.Millisecond)
}

// An encrypted dataset arrives with its key loaded nowhere: in full, by three
// increments and by one from a bookmark; nothing of it crosses in the clear.
func TestZFSEncryptedChain(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	key := encryptedDataset(t, src)
	marker := "zxfer-known-plaintext-" + strings.Repeat("0123456789abcdef", 8)
	write := func(i int) {
		mount(t, src)
		path := filepath.Join(mountpoint(t, src), fmt.Sprintf("text%d", i))
		require.NoError(t, os.WriteFile(path, []byte(strings.Repeat(marker+"\n", 20000)), 0o644))
		zfsCmd(t, "snapshot", fmt.Sprintf("%s@s%d", src, i))
		lock(t, src)
	}
	loadKey := func() { zfsCmd(t, "load-key", src) }

	capture := filepath.Join(t.TempDir(), "wire.pcap")
	dump := exec.Command("ip", "netns", "exec", betaPool, "tcpdump", "-i", "zxb0", "-U", "-s", "0", "-B", "65536", "-w", capture, "tcp and not port 22")
	var dumpLog lockedBuffer
	dump.Stderr = &dumpLog
	require.NoError(t, dump.Start())
	require.Eventually(t, func() bool { return strings.Contains(dumpLog.String(), "listening on") }, 10*time.Second, 50*time.Millisecond)

	for i := range 4 {
		if i > 0 {
			loadKey()
		}
		write(i)
		o := mustZxfer(t, "send", "--bookmark", "--json", src, "beta:"+betaPool)
		var report struct {
			Wire    struct{ Mode string }
			Results []struct {
				Kind, Wire, Verified string
				Bytes                int64
			}
		}
		require.NoError(t, json.Unmarshal([]byte(o.stdout), &report), o.String())
		require.Len(t, report.Results, 1)
		require.Equal(t, "signed", report.Results[0].Wire)
		require.Equal(t, "guid", report.Results[0].Verified)
		require.Equal(t, map[bool]string{true: "full", false: "incremental"}[i == 0], report.Results[0].Kind)
	}
	// Only the bookmark of s3 is left as a common base on alpha.
	loadKey()
	write(4)
	for i := range 4 {
		zfsCmd(t, "destroy", fmt.Sprintf("%s@s%d", src, i))
	}
	o := mustZxfer(t, "send", "-n", src, "beta:"+betaPool)
	require.Contains(t, o.stdout, "incremental #s3 -> @s4", "the plan starts from the bookmark")
	mustZxfer(t, "send", src, "beta:"+betaPool)
	require.Equal(t, guids(t, src)["s4"], guids(t, dst)["s4"])
	require.Len(t, guids(t, dst), 5)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))

	require.NoError(t, dump.Process.Signal(os.Interrupt))
	_ = dump.Wait() // its exit code depends on the version
	wire, err := os.ReadFile(capture)
	require.NoError(t, err)
	require.Greater(t, len(wire), 100_000, "the capture saw the streams: %s", &dumpLog)
	require.False(t, bytes.Contains(wire, []byte("zxfer-known-plaintext")), "plaintext crossed the wire")

	zfsCmd(t, "load-key", src)
	zfsCmd(t, "load-key", "-L", "file://"+key, dst)
	sameFiles(t, src, dst)
}

func TestZFSDefaults(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "recordsize=1M", "-o", "compression=zstd", src)
	fill(t, src, "a", 3<<20)
	zfsCmd(t, "snapshot", src+"@one")
	fill(t, src, "b", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	fill(t, src, "c", 1<<20)
	zfsCmd(t, "snapshot", src+"@three")

	o := mustZxfer(t, "send", "-q", src, "beta:"+betaPool)
	require.Empty(t, o.stderr)
	require.Equal(t, guids(t, src), guids(t, dst), "intermediate snapshots are kept")
	get := func(p string) string { return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", p, dst)) }
	require.Equal(t, "noauto", get("canmount"))
	require.Equal(t, "on", get("readonly"))
	require.Equal(t, "no", get("mounted"))
	require.Equal(t, "1048576", get("recordsize"))
	require.Equal(t, "zstd", get("compression"))
	sameFiles(t, src, dst)

	o = mustZxfer(t, "send", src, "beta:"+betaPool)
	require.Contains(t, o.stdout+o.stderr, "up to date")
	nothingLeft(t, 20*time.Second)
}

func TestZFSDirections(t *testing.T) {
	lab(t)
	t.Run("pull", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", dst)
		fill(t, dst, "a", 1<<20)
		zfsCmd(t, "snapshot", dst+"@x")
		mustZxfer(t, "send", "beta:"+dst+"@x", src)
		require.Equal(t, guids(t, dst), guids(t, src))
	})
	t.Run("third-party", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "a", 1<<20)
		zfsCmd(t, "snapshot", src+"@x")
		mustZxfer(t, "send", "alpha:"+src+"@x", "beta:"+dst)
		require.Equal(t, guids(t, src), guids(t, dst))
	})
	t.Run("local", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		fill(t, src, "a", 1<<20)
		zfsCmd(t, "snapshot", src+"@x")
		o := mustZxfer(t, "send", "--json", src+"@x", betaPool+"/")
		require.Contains(t, o.stdout, `"wire": "local"`, o.String())
		require.Equal(t, guids(t, src), guids(t, dst))
	})
	t.Run("path", func(t *testing.T) {
		src, dst := dataset(t)
		zfsCmd(t, "create", src)
		zfsCmd(t, "snapshot", src+"@x")
		mustZxfer(t, "send", mountpoint(t, src), "beta:"+dst)
		require.Equal(t, guids(t, src), guids(t, dst))
	})
}

func TestZFSWires(t *testing.T) {
	lab(t)
	for _, flags := range [][]string{
		{"--wire", "signed"}, {"--wire", "tls"}, {"--wire", "plain", "--trusted-link"}, {"--wire", "ssh"},
		{"--wire", "signed", "--streams", "4"}, {"--wire", "tls", "--streams", "3"}, {"--wire", "plain", "--trusted-link", "--streams", "2"},
		{"--dial", "target"}, {"--port-range", "50000-50010"}, {"--compress", "auto"}, {"--window", "1MiB"}, {"--bwlimit", "50MiB"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", 5<<20)
			require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, src), "text"), bytes.Repeat([]byte("easily compressed "), 200_000), 0o644))
			zfsCmd(t, "snapshot", src+"@x")
			mustZxfer(t, append(append([]string{"send", "--verify"}, flags...), src+"@x", "beta:"+dst)...)
			sameFiles(t, src, dst)
		})
	}
	nothingLeft(t, 20*time.Second)
}

func TestZFSRecursive(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "create", src+"/fs")
	zfsCmd(t, "create", "-V", "16m", "-o", "volblocksize=16k", src+"/vol")
	zfsCmd(t, "create", src+"/fs/deep er") // a legal name with a space
	fill(t, src+"/fs", "a", 1<<20)
	zfsCmd(t, "snapshot", "-r", src+"@one")
	zfsCmd(t, "clone", src+"/fs@one", src+"/clone")
	fill(t, src+"/clone", "b", 1<<20)
	mustZxfer(t, "send", "-R", "--snapshot", "two", "--parallel", "3", src, "beta:"+betaPool)
	mustZxfer(t, "send", "-R", "--snapshot=", src, "beta:"+betaPool)
	time.Sleep(time.Second) // the next one's name is another second
	mustZxfer(t, "send", "-R", "--snapshot=", src, "beta:"+betaPool)
	require.Len(t, guids(t, src), 4)
	for _, d := range []string{"", "/fs", "/vol", "/fs/deep er", "/clone"} {
		require.Equal(t, guids(t, src+d), guids(t, dst+d), d)
	}
	require.Equal(t, dst+"/fs@one", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "origin", dst+"/clone")))
	sameFiles(t, src+"/clone", dst+"/clone")
}

func TestZFSHoldAndProperties(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", "-o", "org.example:note=kept as it is", src)
	zfsCmd(t, "snapshot", src+"@x")
	mustZxfer(t, "send", "-p", "-o", "quota=500M", "-o", "readonly=off", "-x", "atime", "--hold", "keepme", src, "beta:"+dst)
	get := func(p string) string { return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", p, dst)) }
	require.Equal(t, "kept as it is", get("org.example:note"))
	require.Equal(t, "524288000", get("quota"))
	require.Equal(t, "off", get("readonly"))
	require.Equal(t, "on", get("atime"))
	for _, s := range []string{src + "@x", dst + "@x"} {
		require.Contains(t, zfsCmd(t, "holds", "-H", s), "keepme")
	}
}

// Whatever is refused, or only planned, leaves both pools as they were.
func TestZFSRefusalsChangeNothing(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	zfsCmd(t, "snapshot", src+"@two")

	diverged := dst + "-diverged"
	zfsCmd(t, "create", diverged)
	zfsCmd(t, "snapshot", diverged+"@one")
	zfsCmd(t, "snapshot", diverged+"@theirs")
	modified := dst + "-modified"
	mustZxfer(t, "send", "-o", "readonly=off", src+"@one", "beta:"+modified)
	mount(t, modified)
	require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, modified), "theirs"), []byte("x"), 0o644))
	zfsCmd(t, "unmount", modified)
	t.Cleanup(func() {
		for _, d := range []string{diverged, modified} {
			_ = exec.Command("zfs", "destroy", "-R", d).Run()
		}
	})
	enc := src + "/enc"
	encryptedDataset(t, enc)
	zfsCmd(t, "snapshot", enc+"@x")
	lock(t, enc)
	big := src + "/big"
	zfsCmd(t, "create", "-s", "-V", "8g", big)
	zfsCmd(t, "snapshot", big+"@x")

	// A remote shell to the same host whose user has never had zxfer there.
	withoutCache := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(withoutCache, []byte("#!/bin/sh\nc=$(printf %s \"$2\" | base64 -w0)\n"+
		"exec ssh -F "+labDir+"/ssh_config \"$1\" \"unshare -m sh -c 'mount -t tmpfs tmpfs ~/.cache; eval \\\"\\$(echo $c | base64 -d)\\\"'\"\n"), 0o755))

	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"dry run", []string{"-n", src, "beta:" + dst}, 0, []string{"zfs send", src + "@two"}},
		{"dry run with a new snapshot", []string{"-n", "--snapshot", "three", "-R", src, "beta:" + dst + "-new"}, 0, []string{"@three"}},
		{"no such dataset", []string{alphaPool + "/nowhere", "beta:" + betaPool}, 3, []string{"no such dataset", "hint:"}},
		{"no such snapshot", []string{src + "@nope", "beta:" + dst}, 3, []string{"nope", "one", "two"}},
		{"no such pool", []string{src, "beta:nopool/x"}, 3, []string{"beta: no such pool: nopool", "hint: list the pools there: zpool list"}},
		{"no such pool of the source", []string{"nopool/x", "beta:" + betaPool}, 3, []string{"no such pool: nopool"}},
		{"a host without a pool", []string{src, "beta"}, 3, []string{"no such pool: beta", "hint: did you mean beta:POOL?"}},
		{"a snapshot that is there", []string{"--snapshot", "one", "-R", src, "beta:" + dst}, 3,
			[]string{"--snapshot one takes a new snapshot, but there is one of that name: " + src + "@one", "hint: --snapshot= takes one", "the same command, with " + src + "@one as its source and without --snapshot"}},
		{"diverged", []string{src, "beta:" + diverged}, 3, []string{"@one", "@theirs", "beta"}},
		{"modified", []string{src, "beta:" + modified}, 3, []string{"modified", "rollback"}},
		{"onto itself", []string{src, src}, 3, nil},
		{"key not loaded for --decrypt", []string{"--decrypt", enc, "beta:" + dst + "-new"}, 3, []string{"load-key"}},
		{"volume onto filesystem", []string{big, "beta:" + dst}, 3, []string{"volume", "filesystem"}},
		{"illegal target", []string{src, "beta:" + betaPool + "/a%b"}, 2, []string{"a%b"}},
		{"name too long", []string{src, "beta:" + betaPool + "/" + strings.Repeat("x", 250)}, 2, []string{"255"}},
		{"device", []string{"/dev/null", "beta:" + betaPool}, 2, []string{"is a device, and the other end is not"}},
		{"no zxfer there", []string{"--no-bootstrap", "-e", withoutCache, src, "beta:" + dst}, 3, []string{"--no-bootstrap"}},
		{"no such host", []string{src, "gamma.invalid:" + betaPool}, 1, []string{"gamma.invalid", "ssh"}},
		{"set a read-only property", []string{"-o", "used=3", src, "beta:" + dst}, 3, []string{"used"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := state(t)
			o := zxfer(t, append([]string{"send"}, tt.args...)...)
			require.Equal(t, tt.code, o.code, o.String())
			for _, w := range tt.want {
				require.Contains(t, o.stdout+o.stderr, w)
			}
			require.Equal(t, before, state(t))
		})
	}
	nothingLeft(t, 20*time.Second)
}

func TestZFSRollback(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	zfsCmd(t, "snapshot", dst+"@theirs")
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	o := zxfer(t, "send", src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "@theirs")
	o = mustZxfer(t, "send", "-n", "--rollback", src, "beta:"+dst)
	require.Contains(t, o.stdout, "@theirs", "the plan lists what would be lost")

	// ZFS would say so at the end of the stream.
	zfsCmd(t, "hold", "mine", dst+"@theirs")
	zfsCmd(t, "clone", dst+"@theirs", dst+"-clone")
	before := state(t)
	o = zxfer(t, "send", "--rollback", src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	for _, text := range []string{"zfs release mine " + dst + "@theirs", "zfs destroy " + dst + "-clone"} {
		require.Contains(t, o.stderr, text)
	}
	require.Equal(t, before, state(t))
	zfsCmd(t, "release", "mine", dst+"@theirs")
	zfsCmd(t, "destroy", dst+"-clone")
	mustZxfer(t, "send", "--rollback", src, "beta:"+dst)
	require.Equal(t, guids(t, src), guids(t, dst))
}

// A broken raw chain is found at plan time although the GUIDs match
// (openzfs#8758).
func TestZFSBrokenRawChain(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	encryptedDataset(t, src)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	// A plain increment onto the raw chain, as a careless tool would send.
	key := strings.TrimPrefix(strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keylocation", src)), "file://")
	zfsCmd(t, "load-key", "-L", "file://"+key, dst)
	run(t, "sh", "-c", fmt.Sprintf("zfs send -i @one %s@two | zfs receive -u -F %s", src, dst))
	zfsCmd(t, "snapshot", src+"@three")
	before := state(t)
	o := zxfer(t, "send", src, "beta:"+dst)
	require.Equal(t, 3, o.code, o.String())
	require.Contains(t, o.stderr, "@two")
	require.Contains(t, o.stderr, "hint:")
	require.Equal(t, before, state(t))
}

// 300 datasets with 20 snapshots each (25 with 10 with -short) on both sides, the source
// mounted and the copy not; one new snapshot each: at most two processes per
// dataset, and planning takes seconds.
func TestZFSManyDatasets(t *testing.T) {
	lab(t)
	datasets, snapshots := 300, 20
	if testing.Short() {
		datasets, snapshots = 25, 10
	}
	src, _ := dataset(t)
	zfsCmd(t, "create", src)
	for i := range datasets - 1 {
		zfsCmd(t, "create", fmt.Sprintf("%s/d%03d", src, i))
	}
	for i := range snapshots {
		zfsCmd(t, "snapshot", "-r", fmt.Sprintf("%s@s%02d", src, i))
	}
	mustZxfer(t, "send", "-q", "-R", src, "beta:"+betaPool)
	zfsCmd(t, "snapshot", "-r", src+"@new")

	log := filepath.Join(t.TempDir(), "calls")
	for _, tool := range []string{"zfs", "zpool"} {
		path := strings.TrimSpace(run(t, "sh", "-c", "command -v "+tool))
		shim := fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%s\nexec %s \"$@\"\n", tool, log, path)
		require.NoError(t, os.WriteFile(filepath.Join(labDir, "bin", tool), []byte(shim), 0o755))
		t.Cleanup(func() { _ = os.Remove(filepath.Join(labDir, "bin", tool)) })
	}
	calls := func() int {
		raw, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.Remove(log))
		return strings.Count(string(raw), "\n")
	}
	// What ZFS itself takes to list both sides, one after the other as this
	// kernel has one CPU. Planning thousands of snapshots takes less, as it lists the
	// target's newest only; of few, starting takes longest. The ten seconds are for
	// what else may run on the host.
	began := time.Now()
	for _, pool := range []string{src, betaPool} {
		zfsCmd(t, "list", "-Hp", "-r", "-t", "snapshot", "-o", "name,guid,createtxg", pool)
		zfsCmd(t, "get", "-Hp", "-r", "-t", "filesystem,volume", "used", pool)
	}
	bare := time.Since(began)
	began = time.Now()
	o := mustZxfer(t, "send", "-n", "--json", "-R", src, "beta:"+betaPool)
	planning := time.Since(began)
	var report job.Report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &report))
	t.Logf("planning %d datasets × %d snapshots: %.1f s, %.1f s with ssh, zfs list and get of both sides alone take %.1f s; %d zfs and zpool processes",
		datasets, snapshots+1, report.PlanSeconds, planning.Seconds(), bare.Seconds(), calls())
	require.Contains(t, o.stdout, "@new")
	require.Less(t, planning, bare+10*time.Second)

	began = time.Now()
	mustZxfer(t, "send", "-q", "-R", src, "beta:"+betaPool)
	n := calls()
	t.Logf("sending %d increments: %.1f s, %d zfs and zpool processes", datasets, time.Since(began).Seconds(), n)
	beside := 11 // the surveys, and two looks at what arrived
	if !tellsWhatChanged() {
		beside++ // it is asked once
	}
	require.LessOrEqual(t, n, 2*datasets+beside)
}
