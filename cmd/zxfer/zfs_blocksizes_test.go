package main

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// blocksizeLab is a pair on one host, whose source is mounted at mountpoint also after a change of roles.
type blocksizeLab struct{ *failoverLab }

func newBlocksizeLab(t *testing.T, recordsize string, options ...string) *blocksizeLab {
	t.Helper()
	lab(t)
	at := t.TempDir() + "/data" // deleted after the dataset
	src, dst := dataset(t)
	zfsCmd(t, append(append([]string{"create", "-o", "recordsize=" + recordsize, "-o", "mountpoint=" + at}, options...), src)...)
	return &blocksizeLab{&failoverLab{newReplication(t, fmt.Sprintf(`
[[job]]
name = "home"
source = %q
mount_below = ["/tmp"]
snapshots = { take = "{job}-%%Y%%m%%dT%%H%%M%%SZ" }
[[job.target]]
name = "near"
to = %q
`, src, dst)), src, dst, at}}
}

// write writes a file in place: an existing one is truncated first. It returns the digest of the contents.
func (l *blocksizeLab) write(t *testing.T, name string, n int) string {
	t.Helper()
	b := make([]byte, n)
	_, _ = rand.Read(b)
	require.NoError(t, os.WriteFile(filepath.Join(l.mountpoint, name), b, 0o600))
	run(t, "sync")
	nextSecond(t)
	return digestOf(b)
}

func digestOf(b []byte) string { return fmt.Sprintf("%d bytes %x", len(b), sha256.Sum256(b)) }

// replace follows the hint: it replaces a file by a copy of itself.
func (l *blocksizeLab) replace(t *testing.T, name string) {
	t.Helper()
	run(t, "sh", "-c", `cd "$1" && cp -a "$2" "$2.new" && mv "$2.new" "$2"`, "sh", l.mountpoint, name)
	nextSecond(t)
}

// latest returns the digest of a file in the most recent snapshot of a dataset.
func latest(t *testing.T, d, name string) string {
	t.Helper()
	snapshots := strings.Fields(zfsCmd(t, "list", "-Ho", "name", "-t", "snapshot", "-d", "1", "-s", "createtxg", d))
	at := t.TempDir()
	run(t, "mount", "-t", "zfs", snapshots[len(snapshots)-1], at)
	defer run(t, "umount", at)
	b, err := os.ReadFile(filepath.Join(at, name))
	require.NoError(t, err)
	return digestOf(b)
}

// refused runs a command that must be refused because of the block sizes of a file, and change nothing.
func (l *blocksizeLab) refused(t *testing.T, file string, verb string, args ...string) cmdResult {
	t.Helper()
	before := l.writableSides(t)
	roles := zfsCmd(t, "get", "-Ho", "value", zfs.RoleProperty, l.src, l.dst)
	argv := l.onAlpha(verb, args...)
	o := result(exec.Command(argv[0], argv[1:]...))
	require.Contains(t, []int{1, 3}, o.code, o)
	require.Contains(t, o.stderr, "plain increments would lose data of 1 file, because the block sizes differ: "+file+" (", o)
	require.Equal(t, before, l.writableSides(t))
	require.Equal(t, roles, zfsCmd(t, "get", "-Ho", "value", zfs.RoleProperty, l.src, l.dst))
	return o
}

// TestZFSBlockSizesTwoSwitches rewrites a file with larger blocks on the new source. Without the check, the
// switch back and the next change of a neighbour replaced half of it by zeros.
func TestZFSBlockSizesTwoSwitches(t *testing.T) {
	for name, c := range map[string]struct {
		size  int
		equal bool // set the larger recordsize on both sides
	}{
		"several blocks":      {size: 128 << 10},
		"equal recordsize":    {size: 128 << 10, equal: true},
		"refused for ever":    {size: 1 << 20},
		"neighbour of 1 byte": {size: 100 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			l := newBlocksizeLab(t, "64K")
			l.write(t, "f", c.size)
			l.must(t, "run", "home")
			if c.equal {
				zfsCmd(t, "set", "recordsize=128K", l.src)
				zfsCmd(t, "set", "recordsize=128K", l.dst)
			}
			l.must(t, "switch", "home")
			zfsCmd(t, "set", "recordsize=128K", l.dst)
			want := l.write(t, "f", c.size)
			l.must(t, "run", "home")
			require.Equal(t, want, latest(t, l.src, "f"))
			o := l.refused(t, "f", "switch", "home")
			require.Equal(t, 3, o.code, o)
			require.Contains(t, o.stderr, fmt.Sprintf("f (64 KiB in %s, 1", l.src))
			t.Logf("%s", o.stderr)
			l.replace(t, "f")
			l.must(t, "run", "home")
			l.must(t, "switch", "home")
			l.write(t, "neighbour", 1)
			l.must(t, "run", "home")
			l.write(t, "neighbour2", 1)
			l.must(t, "run", "home")
			require.Equal(t, want, latest(t, l.src, "f"))
			require.Equal(t, want, latest(t, l.dst, "f"))
		})
	}
}

// TestZFSBlockSizesLiveSource raises the recordsize and rewrites a file in place. Without the check, the
// stream of the first run after the switch replaced it by zeros on the former source. The switch is refused,
// also if the rewrite happened after the last run.
func TestZFSBlockSizesLiveSource(t *testing.T) {
	for name, late := range map[string]bool{"before the last run": false, "after it": true} {
		t.Run(name, func(t *testing.T) {
			l := newBlocksizeLab(t, "16K")
			l.write(t, "f", 48<<10)
			l.must(t, "run", "home")
			zfsCmd(t, "set", "recordsize=128K", l.src)
			want := l.write(t, "f", 48<<10)
			if !late {
				l.must(t, "run", "home")
			}
			o := l.refused(t, "f", "switch", "home")
			require.Contains(t, o.stderr, "cp -a FILE FILE.new")
			l.replace(t, "f")
			l.must(t, "run", "home")
			l.must(t, "switch", "home")
			l.write(t, "neighbour", 1)
			l.must(t, "run", "home")
			require.Equal(t, want, latest(t, l.src, "f"))
			l.must(t, "switch", "home")
			l.write(t, "neighbour2", 1)
			l.must(t, "run", "home")
			require.Equal(t, want, latest(t, l.dst, "f"))
		})
	}
}

// TestZFSBlockSizesFailBack promotes a copy, and makes the former source a copy of it.
func TestZFSBlockSizesFailBack(t *testing.T) {
	l := newBlocksizeLab(t, "16K")
	l.write(t, "f", 48<<10)
	l.must(t, "run", "home")
	zfsCmd(t, "set", "recordsize=128K", l.src)
	want := l.write(t, "f", 48<<10)
	zfsCmd(t, "unmount", l.src) // writes access times, which would be newer than the snapshot
	l.must(t, "run", "home")
	l.mountpoint = t.TempDir() + "/copy" // both hosts of the lab have one kernel, and so one list of mountpoints
	l.must(t, "promote", "--source-alive", "--mountpoint", l.mountpoint, "home")
	l.write(t, "neighbour", 1)
	o := l.refused(t, "f", "switch", "home")
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "switch --rotate home near")
	require.Contains(t, l.must(t, "switch", "-n", "--rotate", "home").stdout, "zfs rename "+l.src+" ")
	l.replace(t, "f") // the old file is not in the first snapshot that is sent
	l.must(t, "switch", "home")
	l.must(t, "run", "home")
	require.Equal(t, want, latest(t, l.src, "f"))
}

// TestZFSBlockSizesSendBack sends a copy back to its source. The record of the direction makes the next
// stream of the former direction compare again.
func TestZFSBlockSizesSendBack(t *testing.T) {
	l := newBlocksizeLab(t, "16K")
	direction := func(d string) string {
		return strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", zfs.DirectionProperty, d))
	}
	guid := func(d string) string { return strings.TrimSpace(zfsCmd(t, "get", "-Hpo", "value", "guid", d)) }
	back := func() { // change the copy, and send it back
		zfsCmd(t, "set", "readonly=off", l.dst)
		at := t.TempDir()
		zfsCmd(t, "set", "mountpoint="+at, l.dst)
		zfsCmd(t, "mount", l.dst)
		require.NoError(t, os.WriteFile(at+"/neighbour", nil, 0o600))
		zfsCmd(t, "unmount", l.dst)
		zfsCmd(t, "unmount", l.src)
	}
	l.write(t, "f", 48<<10)
	mustZxfer(t, "send", "--snapshot=a", l.src, l.dst)
	require.Equal(t, guid(l.src)+"-0", direction(l.dst))
	zfsCmd(t, "set", "recordsize=128K", l.src)
	want := l.write(t, "f", 48<<10)
	mustZxfer(t, "send", "--snapshot=b", l.src, l.dst)
	back()
	o := zxfer(t, "send", "--snapshot=c", l.dst, l.src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "f (16 KiB in "+l.dst)
	t.Logf("%s", o.stderr)
	require.Equal(t, want, latest(t, l.src, "f"))
	zfsCmd(t, "snapshot", l.dst+"@c")
	o = zxfer(t, "restore", l.dst, l.src)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "f (16 KiB in "+l.dst)
	require.Contains(t, o.stderr, "restore to a new dataset")
	zfsCmd(t, "destroy", l.dst+"@c")
	zfsCmd(t, "mount", l.src)
	zfsCmd(t, "rollback", l.dst+"@b")
	l.replace(t, "f")
	mustZxfer(t, "send", "--snapshot=c", l.src, l.dst)
	back()
	mustZxfer(t, "send", "--snapshot=d", l.dst, l.src)
	require.Equal(t, "-", direction(l.dst))
	require.True(t, strings.HasPrefix(direction(l.src), guid(l.dst)+"-"), direction(l.src))
	require.Equal(t, want, latest(t, l.src, "f"))
	zfsCmd(t, "mount", l.src)
	l.write(t, "neighbour2", 1)
	mustZxfer(t, "send", "--snapshot=e", l.src, l.dst)
	require.Equal(t, "-", direction(l.src))
	require.Equal(t, want, latest(t, l.dst, "f"))
}

// TestZFSBlockSizesUnaffected expects that a raw copy may change its role with the same history, and that
// increments in one direction are sent without a comparison: by a relay, and onto copies of earlier versions,
// which have no record.
func TestZFSBlockSizesUnaffected(t *testing.T) {
	t.Run("raw", func(t *testing.T) {
		key := filepath.Join(t.TempDir(), "key")
		require.NoError(t, os.WriteFile(key, make([]byte, 32), 0o600))
		l := newBlocksizeLab(t, "16K", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key)
		l.write(t, "f", 48<<10)
		l.must(t, "run", "home")
		zfsCmd(t, "set", "recordsize=128K", l.src)
		want := l.write(t, "f", 48<<10)
		l.must(t, "run", "home")
		l.must(t, "switch", "home")
		zfsCmd(t, "load-key", "-L", "file://"+key, l.dst)
		l.must(t, "switch", "home") // mounts it
		l.write(t, "neighbour", 1)
		l.must(t, "run", "home")
		require.Equal(t, want, latest(t, l.src, "f"))
	})
	t.Run("volume", func(t *testing.T) {
		lab(t)
		src, dst := dataset(t)
		zfsCmd(t, "create", "-V", "8M", "-o", "volblocksize=16K", src)
		mustZxfer(t, "send", "--snapshot=a", src, dst)
		zfsCmd(t, "set", "readonly=off", dst)
		mustZxfer(t, "send", "--verify", "--snapshot=b", dst, src)
		mustZxfer(t, "send", "--verify", "--snapshot=c", src, dst)
	})
	t.Run("relay", func(t *testing.T) {
		l := newBlocksizeLab(t, "16K")
		far := l.dst + "-far"
		t.Cleanup(func() { cleanUp(far) })
		send := func(snapshot string) {
			mustZxfer(t, "send", "--snapshot="+snapshot, l.src, l.dst)
			mustZxfer(t, "send", l.dst, far)
		}
		l.write(t, "f", 48<<10)
		send("a")
		zfsCmd(t, "inherit", zfs.DirectionProperty, l.dst)
		zfsCmd(t, "set", "recordsize=128K", l.src)
		want := l.write(t, "f", 48<<10)
		send("b")
		l.write(t, "neighbour", 1)
		send("c")
		require.Equal(t, "-", strings.TrimSpace(zfsCmd(t, "get", "-Ho", "value", zfs.DirectionProperty, l.dst)), "it was not compared")
		require.Equal(t, want, latest(t, far, "f"))
		// The source sends to the copy of the copy: another direction.
		o := zxfer(t, "send", "--snapshot=d", l.src, far)
		require.Equal(t, 0, o.code, o)
		require.Equal(t, want, latest(t, far, "f"))
	})
}

// sendBack changes a copy, and unmounts both sides, so that the copy can be sent to its source.
func (l *blocksizeLab) sendBack(t *testing.T) {
	t.Helper()
	zfsCmd(t, "set", "readonly=off", l.dst)
	at := t.TempDir()
	zfsCmd(t, "set", "mountpoint="+at, l.dst)
	if mountedAt(t, l.dst) == "" {
		zfsCmd(t, "mount", l.dst)
	}
	require.NoError(t, os.WriteFile(at+"/neighbour", make([]byte, 100), 0o600))
	fill(t, l.dst, "more", 400<<10)
	zfsCmd(t, "unmount", l.dst)
	zfsCmd(t, "unmount", l.src)
}

// TestZFSBlockSizesRestrictedKey pushes in the new direction with a key that may only receive. It cannot
// compare, so the stream is refused. With send=, it is compared, sent and recorded.
func TestZFSBlockSizesRestrictedKey(t *testing.T) {
	l := newBlocksizeLab(t, "16K")
	want := l.write(t, "f", 48<<10)
	mustZxfer(t, "send", "--snapshot=a", l.src, l.dst)
	l.sendBack(t)
	zfsCmd(t, "snapshot", l.dst+"@b")
	rsh, _ := restrictedKey(t, "--allow", "receive="+l.src)
	o := zxfer(t, "send", "--rsh", rsh, l.dst, "beta:"+l.src)
	t.Logf("%s", o)
	require.Equal(t, 3, o.code, o)
	require.Contains(t, o.stderr, "the block sizes of its files cannot be compared")
	require.Equal(t, want, latest(t, l.src, "f"))
	rsh, _ = restrictedKey(t, "--allow", "receive="+l.src, "--allow", "send="+l.src)
	mustZxfer(t, "send", "--rsh", rsh, l.dst, "beta:"+l.src)
	require.True(t, strings.HasPrefix(value(t, l.src, zfs.DirectionProperty), value(t, l.dst, "guid")+"-"))
	require.Equal(t, want, latest(t, l.src, "f"))
}
