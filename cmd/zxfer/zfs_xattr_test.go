package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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
