package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// TestZFSBlockSizesKilled kills zxfer with SIGKILL after the comparison: before the first stream in the new
// direction, within it, and before the record of the former direction is deleted. The next run compares
// again, and completes both records.
func TestZFSBlockSizesKilled(t *testing.T) {
	for name, receive := range map[string]string{
		"before the stream": "kill -9 $PPID; exit 1",
		"in the stream":     "head -c 200000 | ZFS \"$@\"; kill -9 $PPID; exit 1",
		"after the stream":  "ZFS \"$@\"; kill -9 $PPID; exit 1",
	} {
		t.Run(name, func(t *testing.T) {
			l := newBlocksizeLab(t, "16K")
			want := l.write(t, "f", 48<<10)
			mustZxfer(t, "send", "--snapshot=a", l.src, l.dst)
			l.sendBack(t)
			zfsCmd(t, "snapshot", l.dst+"@b")
			real, err := exec.LookPath("zfs")
			require.NoError(t, err)
			wrapper := filepath.Join(labDir, "bin", "zfs")
			testenv.WriteProgram(t, wrapper, fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" = receive ] || exec %s \"$@\"\n%s\n", real, strings.ReplaceAll(receive, "ZFS", real)))
			t.Cleanup(func() { _ = os.Remove(wrapper) })
			o := zxfer(t, "send", l.dst, l.src)
			require.NoError(t, os.Remove(wrapper))
			require.NotContains(t, []int{0, 1, 2, 3, 4}, o.code, o)
			mustZxfer(t, "send", l.dst, l.src)
			if name != "after the stream" {
				require.Equal(t, "-", value(t, l.dst, zfs.DirectionProperty))
				require.True(t, strings.HasPrefix(value(t, l.src, zfs.DirectionProperty), value(t, l.dst, "guid")+"-"))
			}
			require.Equal(t, want, latest(t, l.src, "f"))
			zfsCmd(t, "mount", l.src)
			l.write(t, "neighbour2", 1)
			mustZxfer(t, "send", "--snapshot=c", l.src, l.dst)
			require.Equal(t, want, latest(t, l.dst, "f"))
			require.True(t, strings.HasPrefix(value(t, l.dst, zfs.DirectionProperty), value(t, l.src, "guid")+"-"))
		})
	}
}

// TestZFSBlockSizesLarge raises recordsize from 128K to 1M, among thousands of files, and expects that the
// copy is not sent back, whether or not the streams have large blocks.
func TestZFSBlockSizesLarge(t *testing.T) {
	for name, flags := range map[string][]string{"large blocks": {"-L"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			l := newBlocksizeLab(t, "128K")
			l.write(t, "f", 1000<<10)
			for i := range 3000 {
				dir := fmt.Sprintf("%s/%d", l.mountpoint, i%10)
				require.NoError(t, os.MkdirAll(dir, 0o700))
				require.NoError(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i), []byte("small"), 0o600))
			}
			pipe := func(args string) {
				run(t, "sh", "-c", "zfs send "+strings.Join(flags, " ")+" "+args+" | zfs receive -u "+l.dst)
			}
			zfsCmd(t, "snapshot", l.src+"@a")
			pipe(l.src + "@a")
			zfsCmd(t, "set", "recordsize=1M", l.src)
			want := l.write(t, "f", 1000<<10)
			zfsCmd(t, "snapshot", l.src+"@b")
			pipe("-i @a " + l.src + "@b")
			require.Equal(t, want, latest(t, l.dst, "f"))
			l.sendBack(t)
			o := zxfer(t, "send", "--snapshot=c", l.dst, l.src)
			require.Equal(t, 3, o.code, o)
			require.Contains(t, o.stderr, "data of 1 file, because the block sizes differ: f (128 KiB in "+l.dst)
			require.Equal(t, want, latest(t, l.src, "f"))
		})
	}
}

// TestZFSBlockSizesExposed has a pair whose roles an earlier version changed: there is no record. check,
// doctor and a run report it, with the drill that shows whether data was lost.
func TestZFSBlockSizesExposed(t *testing.T) {
	l := newBlocksizeLab(t, "16K")
	l.write(t, "f", 48<<10)
	l.must(t, "run", "home")
	l.must(t, "switch", "home")
	for _, d := range []string{l.src, l.dst} {
		zfsCmd(t, "inherit", zfs.DirectionProperty, d)
	}
	zfsCmd(t, "snapshot", l.dst+"@home-20300101T000000Z")
	argv := l.onAlpha("check", "home")
	o := result(exec.Command(argv[0], argv[1:]...))
	d := zxfer(t, "doctor", l.dst, l.src)
	const summary = "the roles changed, and there is no record that block sizes were compared: "
	require.Contains(t, o.stdout, "roles changed without a record that block sizes were compared, so files may have lost data: "+l.src)
	require.Contains(t, d.stdout+d.stderr, summary+l.src)
	require.Contains(t, o.stdout+o.stderr, "zxfer replicate drill home")
	o = l.must(t, "run", "home")
	require.Contains(t, o.stderr, "its role changed, and there is no record that block sizes were compared")
	argv = l.onAlpha("check", "home")
	o = result(exec.Command(argv[0], argv[1:]...))
	require.NotContains(t, o.stdout+o.stderr, "without a record")
}
