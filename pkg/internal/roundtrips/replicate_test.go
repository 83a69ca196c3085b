package roundtrips

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/runner"
)

// TestReplicate counts the round trips of replicate run, to and from a remote host.
func TestReplicate(t *testing.T) {
	for _, ends := range [][2]string{{"tank/a", "beta:vault/a"}, {"beta:tank/a", "vault/a"}} {
		inWorld(t, func(w *world) {
			f, err := replicate.Parse("j.toml", fmt.Appendf(nil, `[[job]]
name = "j"
source = %q
snapshots = { take = "s_%%Y-%%m-%%d_%%H:%%M:%%S" }
retention = { last = 2 }
[[job.target]]
name = "b"
to = %q
retention = { last = 3 }
`, ends[0], ends[1]))
			require.NoError(w.t, err)
			dir := t.TempDir()
			run := func(at *hosts.Set) error {
				time.Sleep(time.Hour)
				r := runner.New(dir, w, time.Now, func(s string) { w.t.Log(s) })
				_, err := r.Run(w.t.Context(), &f.Jobs[0], true)
				require.NoError(w.t, r.Close())
				return err
			}
			n, line := w.measure(run)
			t.Logf("first full: %.1f\n%s", n, line)
			for range 4 {
				n, line = w.measure(run)
			}
			t.Logf("increment: %.1f\n%s", n, line)
		})
	}
}
