package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Datasets cross between zxfers for both architectures, in either direction. The
// guest's kernel starts no arm64 programs by itself: what makes beta one is a remote
// shell that starts its agent there; what beta gets from an arm64 alpha is copied.
func TestZFSArm64(t *testing.T) {
	tools := arm64Tools(t)
	lab(t)
	shell := filepath.Join(t.TempDir(), "rsh")
	agent := zxferFor(tools, "arm64")
	require.NoError(t, os.WriteFile(shell, []byte("exec ssh -F "+labDir+"/ssh_config \"$1\" exec "+agent[0]+" "+agent[1]+" agent\n"), 0o600))
	for _, here := range []string{"amd64", "arm64"} {
		t.Run("from "+here, func(t *testing.T) {
			zxfer := append(zxferFor(tools, here), "send", "--verify")
			if here == "amd64" {
				zxfer = append(zxfer, "-e", "sh "+shell)
			}
			send := func(args ...string) {
				t.Helper()
				end := startAs(t, nil, zxfer[0], append(zxfer[1:], args...)...).wait(t)
				require.Equal(t, 0, end.code, end)
			}
			src, dst := dataset(t)
			back := src + "-back"
			t.Cleanup(func() { _ = destroyAll(back) })
			zfsCmd(t, "create", "-o", "compression=lz4", src)
			for i, snapshot := range []string{"@one", "@two"} {
				fill(t, src, []string{"a", "b"}[i], 8<<20)
				zfsCmd(t, "snapshot", src+snapshot)
				send(src+snapshot, "beta:"+dst)
				send("beta:"+dst+snapshot, back)
			}
			require.Equal(t, guids(t, src), guids(t, back))
			sameFiles(t, src, dst)
			sameFiles(t, src, back)
		})
	}
}
