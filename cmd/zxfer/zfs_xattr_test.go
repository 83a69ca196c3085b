package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"zxfer/pkg/zfs"
)

// TestZFSExtendedAttributes sends large extended attributes, whose spill block
// compresses to an embedded block. zfs send -e would lose such a block silently.
func TestZFSExtendedAttributes(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", "-o", "xattr=sa", "-o", "compression=lz4", source)
	values := map[string][]byte{
		"user.zeros": make([]byte, 3000),
		"user.text":  []byte(strings.Repeat("x\n", 1500)),
	}
	set := func(snapshot string) {
		for name, v := range values { // one attribute per file, so that the block is small
			path := mountpoint(t, source) + "/" + snapshot + name
			require.NoError(t, os.WriteFile(path, []byte("contents"), 0o600))
			require.NoError(t, unix.Setxattr(path, name, v, 0))
		}
	}
	set("full")
	zfsCmd(t, "snapshot", source+"@a")
	mustZxfer(t, "send", "--verify", source+"@a", "beta:"+target)
	set("increment")
	zfsCmd(t, "snapshot", source+"@b")
	mustZxfer(t, "send", "--verify", source+"@b", "beta:"+target)
	mount(t, target)
	for _, file := range []string{"full", "increment"} {
		for name, want := range values {
			got := make([]byte, 4096)
			n, err := unix.Getxattr(mountpoint(t, target)+"/"+file+name, name, got)
			require.NoError(t, err, "%s of %s", name, file)
			require.True(t, bytes.Equal(want, got[:n]), "%s of %s", name, file)
		}
	}
}

// TestZFSEmbeddedAttributes resumes a stream of zfs send -e with extended attributes that OpenZFS since 2.3 sends as file
// data (openzfs#18239). It expects a refusal that names the flag with which the attributes arrive.
func TestZFSEmbeddedAttributes(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", "-o", "xattr=sa", "-o", "compression=lz4", source)
	fill(t, source, "first", 4<<20)
	path := mountpoint(t, source) + "/second"
	require.NoError(t, os.WriteFile(path, []byte("contents"), 0o600))
	want := make([]byte, 3000)
	require.NoError(t, unix.Setxattr(path, "user.zeros", want, 0))
	zfsCmd(t, "snapshot", source+"@a")
	run(t, "bash", "-c", "set -o pipefail; ! zfs send -e "+source+"@a | head -c 3000000 | zfs receive -s -u "+target+" 2>/dev/null")

	if !moduleRelease(t).Before(zfs.Release{2, 3, 0}) {
		o := zxfer(t, "send", source+"@a", "beta:"+target)
		require.Equal(t, 1, o.code, o.String())
		require.Contains(t, o.stderr, "extended attributes as embedded data, which zfs receive would store as file data")
		require.Contains(t, o.stderr, "hint: openzfs#18239: ")
		require.Contains(t, o.stderr, "restart it without embedded blocks: --no-resume")
		token, _ := get(t, "receive_resume_token", target)
		require.NotEqual(t, "-", token, "nothing is discarded without the flag")
	}
	mustZxfer(t, "send", "--no-resume", "--verify", source+"@a", "beta:"+target)
	mount(t, target)
	got := make([]byte, 4096)
	n, err := unix.Getxattr(mountpoint(t, target)+"/second", "user.zeros", got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got[:n]))
}
