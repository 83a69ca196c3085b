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

	"zxfer/pkg/testenv"
)

// encryptedDataset creates a dataset with its own key, and returns the key file.
func encryptedDataset(t *testing.T, name string) (keyFile string) {
	t.Helper()
	keyFile = filepath.Join(t.TempDir(), "key")
	run(t, "dd", "if=/dev/urandom", "of="+keyFile, "bs=32", "count=1", "status=none")
	zfsCmd(t, "create", "-o", "encryption=aes-256-gcm", "-o", "keyformat=raw", "-o", "keylocation=file://"+keyFile, name)
	return keyFile
}

// lockDataset unmounts an encrypted dataset and unloads its key, which remains busy for a moment
// after the unmount.
func lockDataset(t *testing.T, name string) {
	t.Helper()
	zfsCmd(t, "unmount", name)
	require.Eventually(t, func() bool { return exec.Command("zfs", "unload-key", name).Run() == nil }, testenv.Timeout(), 100*time.Millisecond)
}

// TestZFSEncryptedChain sends an encrypted dataset whose key is not loaded: in full, by
// three increments and from a bookmark. It expects no plaintext on the network.
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
		lockDataset(t, src)
	}
	loadKey := func() { zfsCmd(t, "load-key", src) }

	capture := filepath.Join(t.TempDir(), "wire.pcap")
	dump := exec.Command("ip", "netns", "exec", betaPool, "tcpdump", "-i", "zxb0", "-U", "-s", "0", "-B", "65536", "-w", capture, "tcp and not port 22")
	var dumpLog lockedBuffer
	dump.Stderr = &dumpLog
	require.NoError(t, dump.Start())
	require.Eventually(t, func() bool { return strings.Contains(dumpLog.String(), "listening on") }, testenv.Timeout(), 50*time.Millisecond)

	for i := range 4 {
		if i > 0 {
			loadKey()
		}
		write(i)
		o := mustZxfer(t, "send", "--wire", "signed", "--bookmark", "--json", src, "beta:"+betaPool)
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
	// Only the bookmark of s3 remains on alpha as an incremental source.
	loadKey()
	write(4)
	for i := range 4 {
		zfsCmd(t, "destroy", fmt.Sprintf("%s@s%d", src, i))
	}
	o := mustZxfer(t, "send", "-n", src, "beta:"+betaPool)
	require.Contains(t, o.stdout, "incremental #s3 -> @s4", "the plan does not use the bookmark")
	mustZxfer(t, "send", src, "beta:"+betaPool)
	require.Equal(t, guids(t, src)["s4"], guids(t, dst)["s4"])
	require.Len(t, guids(t, dst), 5)
	require.Equal(t, "unavailable", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "keystatus", dst)))

	require.NoError(t, dump.Process.Signal(os.Interrupt))
	_ = dump.Wait() // its exit code depends on the version
	wire, err := os.ReadFile(capture)
	require.NoError(t, err)
	require.Greater(t, len(wire), 100_000, "the capture lacks the streams: %s", &dumpLog)
	require.False(t, bytes.Contains(wire, []byte("zxfer-known-plaintext")), "plaintext on the network")

	zfsCmd(t, "load-key", src)
	zfsCmd(t, "load-key", "-L", "file://"+key, dst)
	requireSameFiles(t, src, dst)
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
	require.Equal(t, guids(t, src), guids(t, dst), "intermediate snapshots are missing")
	get := func(p string) string { return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", p, dst)) }
	require.Equal(t, "noauto", get("canmount"))
	require.Equal(t, "on", get("readonly"))
	require.Equal(t, "no", get("mounted"))
	require.Equal(t, "1048576", get("recordsize"))
	require.Equal(t, "zstd", get("compression"))
	requireSameFiles(t, src, dst)

	o = mustZxfer(t, "send", src, "beta:"+betaPool)
	require.Contains(t, o.stdout+o.stderr, "up to date")
	requireNoLeftovers(t)
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
		{"--wire", "signed", "--dial", "target"}, {"--wire", "tls", "--port-range", "50000-50010"}, {"--wire", "plain", "--trusted-link", "--compress", "auto"}, {"--wire", "ssh"}, {"--wire", "ssh", "--streams", "3"},
		{"--wire", "signed", "--streams", "4", "--window", "1MiB"}, {"--wire", "tls", "--streams", "3", "--bwlimit", "50MiB"}, {"--wire", "plain", "--trusted-link", "--streams", "2"},
	} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			src, dst := dataset(t)
			zfsCmd(t, "create", src)
			fill(t, src, "a", 5<<20)
			require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, src), "text"), bytes.Repeat([]byte("easily compressed "), 200_000), 0o644))
			zfsCmd(t, "snapshot", src+"@x")
			mustZxfer(t, append(append([]string{"send", "--verify"}, flags...), src+"@x", "beta:"+dst)...)
			requireSameFiles(t, src, dst)
		})
	}
	requireNoLeftovers(t)
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
	nextSecond(t) // snapshot names have a resolution of one second
	mustZxfer(t, "send", "-R", "--snapshot=", src, "beta:"+betaPool)
	require.Len(t, guids(t, src), 4)
	for _, d := range []string{"", "/fs", "/vol", "/fs/deep er", "/clone"} {
		require.Equal(t, guids(t, src+d), guids(t, dst+d), d)
	}
	require.Equal(t, dst+"/fs@one", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "origin", dst+"/clone")))
	requireSameFiles(t, src+"/clone", dst+"/clone")
}

func TestZFSHoldAndProperties(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "atime=off", "-o", "org.example:note=kept as it is", src)
	zfsCmd(t, "snapshot", src+"@x")
	mustZxfer(t, "send", "--carry", "org.example:note", "-o", "quota=500M", "-o", "readonly=off", "-x", "atime", "--hold", "keepme", src, "beta:"+dst)
	get := func(p string) string { return strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", p, dst)) }
	require.Equal(t, "kept as it is", get("org.example:note"))
	require.Equal(t, "524288000", get("quota"))
	require.Equal(t, "off", get("readonly"))
	require.Equal(t, "on", get("atime"))
	for _, s := range []string{src + "@x", dst + "@x"} {
		require.Contains(t, zfsCmd(t, "holds", "-H", s), "keepme")
	}
}

// TestZFSRefusalsChangeNothing runs a dry run, and refusals that depend on ZFS, ssh or the
// remote host. pkg/plan and pkg/job/send test the other refusals.
func TestZFSRefusalsChangeNothing(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	zfsCmd(t, "snapshot", src+"@two")

	modified := dst + "-modified"
	mustZxfer(t, "send", "-o", "readonly=off", src+"@one", "beta:"+modified)
	mount(t, modified)
	require.NoError(t, os.WriteFile(filepath.Join(mountpoint(t, modified), "theirs"), []byte("x"), 0o644))
	zfsCmd(t, "unmount", modified)
	t.Cleanup(func() { _ = exec.Command("zfs", "destroy", "-R", modified).Run() })

	// This remote shell connects to the same host, with an empty cache that has no zxfer.
	withoutCache := filepath.Join(t.TempDir(), "rsh")
	require.NoError(t, os.WriteFile(withoutCache, []byte("#!/bin/sh\nc=$(printf %s \"$2\" | base64 -w0)\n"+
		"exec ssh -F "+labDir+"/ssh_config \"$1\" \"unshare -m sh -c 'mount -t tmpfs tmpfs ~/.cache; eval \\\"\\$(echo $c | base64 -d)\\\"'\"\n"), 0o755))

	tests := []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"dry run with new snapshot", []string{"-n", "--snapshot", "three", "-R", src, "beta:" + dst + "-new"}, 0, []string{"@three"}},
		{"no such dataset", []string{alphaPool + "/nowhere", "beta:" + betaPool}, 3, []string{"no such dataset", "hint:"}},
		{"no such pool", []string{src, "beta:nopool/x"}, 3, []string{"beta: no such pool: nopool", "hint: list its pools: ssh -F " + labDir + "/ssh_config beta zpool list"}},
		{"host without pool", []string{src, "beta"}, 3, []string{"no such pool: beta", "hint: did you mean beta:POOL?"}},
		{"modified target", []string{src, "beta:" + modified}, 3, []string{"modified", "rollback"}},
		{"no zxfer on target", []string{"--no-bootstrap", "--wire", "tls", "-e", withoutCache, src, "beta:" + dst}, 3, []string{"--no-bootstrap", "--wire tls requires zxfer on both hosts", "hint: omit --wire"}},
		{"no such host", []string{src, "gamma.invalid:" + betaPool}, 1, []string{"gamma.invalid", "ssh"}},
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
	requireNoLeftovers(t)
}

// TestZFSBrokenRawChain breaks a raw chain, and expects the plan to detect that although
// the GUIDs match (openzfs#8758).
func TestZFSBrokenRawChain(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	encryptedDataset(t, src)
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", src, "beta:"+dst)
	fill(t, src, "a", 1<<20)
	zfsCmd(t, "snapshot", src+"@two")
	// A careless tool sends a plain increment onto the raw copy.
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

// TestZFSManyDatasets sends one new snapshot of each of 25 datasets, of 300 at the long level.
// That takes at most two processes per dataset. The source is mounted, the copy is not.
func TestZFSManyDatasets(t *testing.T) {
	lab(t)
	datasets, snapshots := 25, 10
	if testenv.Long() {
		datasets, snapshots = 300, 20
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
		testenv.WriteProgram(t, filepath.Join(labDir, "bin", tool), shim)
		t.Cleanup(func() { _ = os.Remove(filepath.Join(labDir, "bin", tool)) })
	}
	calls := func() int {
		raw, err := os.ReadFile(log)
		require.NoError(t, err)
		require.NoError(t, os.Remove(log))
		return strings.Count(string(raw), "\n")
	}
	o := mustZxfer(t, "send", "-n", "--json", "-R", src, "beta:"+betaPool)
	require.Contains(t, o.stdout, "@new")
	t.Logf("planning %d datasets × %d snapshots: %d zfs and zpool processes", datasets, snapshots+1, calls())
	mustZxfer(t, "send", "-q", "-R", src, "beta:"+betaPool)
	n := calls()
	t.Logf("sending %d increments: %d zfs and zpool processes", datasets, n)
	overhead := 11 // the initial listings, and two checks of the received datasets
	if !hasSnapshotsChanged() {
		overhead++ // one call asks for snapshots_changed
	}
	require.LessOrEqual(t, n, 2*datasets+overhead)
}
