package runner

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/zfs"
)

// TestRunWithFileOfSourceSameName copies the job file of the source's host to the host of the copy, where the copy has the
// name of the source. It expects that no run there uses the copy as its own source, and that no hint clears its role.
func TestRunWithFileOfSourceSameName(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.dir = t.TempDir()
	text := strings.NewReplacer(`"dst/copy/a"`, `"localhost:dst/copy/a"`, `"src/a"`, `"dst/copy/a"`).Replace(pairText)
	require.NoError(t, os.WriteFile(p.file, []byte(text), 0o600))
	for _, promoted := range []bool{false, true} {
		if promoted {
			_, err := p.doPromote(t, failover.Options{Mountpoint: "none"})
			require.NoError(t, err)
			require.Equal(t, zfs.RoleSource, p.role(t, "dst/copy/a").Kind)
		}
		state := p.state()
		for range 2 {
			err := p.runJob(t, "home")
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
			require.NotContains(t, fault.HintOf(err), zfs.RoleProperty)
			if promoted {
				require.Equal(t, `write the former source's host into the job file: source = "HOST:dst/copy/a"`, fault.HintOf(err))
			}
			require.Equal(t, state, p.state())
		}
	}
}
