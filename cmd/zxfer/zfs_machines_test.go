package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
)

// TestZFSArm64 sends datasets between builds for both architectures, in both directions.
// The kernel of the guest starts no arm64 programs itself: a remote shell starts the agent
// of beta with QEMU. "scripts/arm64 test" is the shorter form.
func TestZFSArm64(t *testing.T) {
	if !testenv.Long() {
		t.Skip("only at the long level: emulation in a guest is slow")
	}
	tools := arm64Tools(t)
	lab(t)
	shell := filepath.Join(t.TempDir(), "rsh")
	agent := zxferFor(tools, "arm64")
	require.NoError(t, os.WriteFile(shell, []byte("exec ssh -F "+labDir+"/ssh_config \"$1\" exec "+agent[0]+" "+agent[1]+" agent\n"), 0o600))
	for _, local := range []string{"amd64", "arm64"} {
		t.Run("from "+local, func(t *testing.T) {
			zxfer := append(zxferFor(tools, local), "send", "--verify")
			if local == "amd64" {
				zxfer = append(zxfer, "-e", "sh "+shell)
			}
			send := func(args ...string) {
				t.Helper()
				end := startAs(t, nil, zxfer[0], append(zxfer[1:], args...)...).wait(t)
				require.Equal(t, 0, end.code, end)
			}
			src, dst := dataset(t)
			back := src + "-back"
			t.Cleanup(func() { cleanUp(back) })
			zfsCmd(t, "create", "-o", "compression=lz4", src)
			for i, snapshot := range []string{"@one", "@two"} {
				fill(t, src, []string{"a", "b"}[i], 8<<20)
				zfsCmd(t, "snapshot", src+snapshot)
				send(src+snapshot, "beta:"+dst)
				send("beta:"+dst+snapshot, back)
			}
			require.Equal(t, guids(t, src), guids(t, back))
			requireSameFiles(t, src, dst)
			requireSameFiles(t, src, back)
		})
	}
}
