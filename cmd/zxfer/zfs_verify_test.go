package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// mainForge copies a stream and changes the byte at an offset of an object. Its usage is
// zxfer-forge OBJECT OFFSET.
func mainForge() {
	if err := forge(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "zxfer-forge:", err)
		os.Exit(1)
	}
}

func forge(object, offset string) error {
	number, err := strconv.ParseUint(object, 10, 64)
	if err != nil {
		return err
	}
	at, err := strconv.ParseUint(offset, 10, 64)
	if err != nil {
		return err
	}
	var s zfstest.Stream
	for r := zfs.NewStreamReader(os.Stdin); ; {
		rec, err := r.Next()
		if err == io.EOF {
			_, err = os.Stdout.Write(s.Bytes())
			return err
		}
		if err != nil {
			return err
		}
		body, err := r.Payload()
		if err != nil {
			return err
		}
		h, payload := rec.Header, bytes.Clone(body)
		begins := binary.LittleEndian.Uint64(h[24:])
		if rec.Type == zfs.RecordWrite && binary.LittleEndian.Uint64(h[8:]) == number && at >= begins && at-begins < uint64(len(payload)) {
			payload[at-begins] ^= 1
		}
		s = append(s, zfstest.Record{Header: [zfs.RecordSize]byte(h), Payload: payload})
	}
}

// forgeReceives makes every zfs receive store a changed byte in an object.
func forgeReceives(t *testing.T, object, offset uint64) {
	t.Helper()
	forge := filepath.Join(filepath.Dir(alphaBin), "zxfer-forge")
	if _, err := os.Stat(forge); err != nil {
		require.NoError(t, installSelf(t, forge))
	}
	real, err := exec.LookPath("zfs")
	require.NoError(t, err)
	wrapper := filepath.Join(labDir, "bin", "zfs")
	testenv.WriteProgram(t, wrapper, fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" = receive ] || exec %s \"$@\"\n%s %d %d | %s \"$@\"\n", real, forge, object, offset, real))
	t.Cleanup(func() { _ = os.Remove(wrapper) })
}

func inode(t *testing.T, dataset, file string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	require.NoError(t, syscall.Stat(filepath.Join(mountpoint(t, dataset), file), &st))
	return st.Ino
}

// TestZFSVerifyChangedRecordsize changes the source's recordsize between snapshots,
// and expects --verify to succeed. A former version reported that the sound copy differs.
func TestZFSVerifyChangedRecordsize(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", src)
	for _, size := range []string{"128K", "1M", "16K"} {
		zfsCmd(t, "set", "recordsize="+size, src)
		for name, n := range map[string]int64{"rewritten": 3 << 20, "multi": 300_000, "small": 5000} {
			fill(t, src, name, n)
		}
		f, err := os.OpenFile(filepath.Join(mountpoint(t, src), "sparse"), os.O_CREATE|os.O_RDWR, 0o644)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte(size), 2<<20)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		zfsCmd(t, "snapshot", src+"@r"+size)
		o := mustZxfer(t, "send", "--verify", "--json", src, "beta:"+dst)
		require.Contains(t, o.stdout, `"verified": "guid and content"`)
		require.NotContains(t, o.stderr, "comparing all", "the increments must be compared")
	}
}

// TestZFSVerifyRewrittenBlocks rewrites blocks with the same data. With a strong
// checksum the target keeps its old blocks, so the increments differ although the snapshots
// are equal.
func TestZFSVerifyRewrittenBlocks(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "checksum=sha256", "-o", "compression=off", src)
	path := filepath.Join(mountpoint(t, src), "f")
	data := []byte(strings.Repeat("the same again ", 100_000))
	require.NoError(t, os.WriteFile(path, data, 0o644))
	zfsCmd(t, "snapshot", src+"@one")
	mustZxfer(t, "send", "--verify", "-o", "compression=lz4", src, "beta:"+dst)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.Write(data) // in place: the source writes new blocks, because it does not compress
	require.NoError(t, err)
	require.NoError(t, f.Close())
	zfsCmd(t, "snapshot", src+"@two")
	zfsCmd(t, "snapshot", src+"@three")
	o := mustZxfer(t, "send", "--verify", src, "beta:"+dst)
	require.Contains(t, o.stderr, dst+"@two: the two sides wrote its new data differently: comparing all of its data")
}

// TestZFSVerifyReportsDifference changes data on its way to the target, and expects --verify
// to name the object, the range and the file.
func TestZFSVerifyReportsDifference(t *testing.T) {
	lab(t)
	src, dst := dataset(t)
	zfsCmd(t, "create", "-o", "compression=off", src)
	for i := range 30 {
		fill(t, src, fmt.Sprintf("f%d", i), 1000)
	}
	fill(t, src, "the one", 1<<20)
	zfsCmd(t, "snapshot", src+"@one")
	object := inode(t, src, "the one")
	found := regexp.MustCompile(`object (\d+) is the first that differs, between its bytes (\d+) and (\d+)`)
	requireNamed := func(o cmdResult, snapshot string, offset uint64) {
		t.Helper()
		require.Equal(t, 1, o.code, o.String())
		require.Contains(t, o.stderr, "differ from "+src+"@"+snapshot+": object")
		m := found.FindStringSubmatch(o.stderr)
		require.NotNil(t, m, o.stderr)
		require.Equal(t, strconv.FormatUint(object, 10), m[1])
		from, err := strconv.ParseUint(m[2], 10, 64)
		require.NoError(t, err)
		to, err := strconv.ParseUint(m[3], 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, from, offset)
		require.Greater(t, to, offset)
		require.LessOrEqual(t, to-from, uint64(2048))
		_, find, ok := strings.Cut(o.stderr, "to find the file on local: ")
		require.True(t, ok, o.stderr)
		find, _, _ = strings.Cut(find, "\n")
		require.Equal(t, filepath.Join(mountpoint(t, src), ".zfs/snapshot", snapshot, "the one")+"\n", run(t, "sh", "-c", find))
	}
	forgeReceives(t, object, 300_000)
	requireNamed(zxfer(t, "send", "--verify", src, "beta:"+dst), "one", 300_000)
	require.NoError(t, os.Remove(filepath.Join(labDir, "bin", "zfs")))

	other := dst + "-other"
	mustZxfer(t, "send", "--verify", src, "beta:"+other)
	for _, name := range []string{"two", "three"} {
		fill(t, src, "f"+name, 1000)
		zfsCmd(t, "snapshot", src+"@"+name)
	}
	fill(t, src, "the one", 1<<20)
	zfsCmd(t, "snapshot", src+"@four")
	object = inode(t, src, "the one")
	forgeReceives(t, object, 70_000)
	requireNamed(zxfer(t, "send", "--verify", src, "beta:"+other), "four", 70_000)
}
