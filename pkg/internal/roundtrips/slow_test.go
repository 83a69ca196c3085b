package roundtrips

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate/runner"
	"zxfer/pkg/zfs"
)

// TestSnapshotsDoNotWaitForTargets expects that a run takes snapshots while the listing of a target still
// takes long.
func TestSnapshotsDoNotWaitForTargets(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.replication("beta:tank/a", takes, "vault/a")
		r.run()
		w.write("tank/a")
		var taken time.Time
		w.local.Around = func(_ context.Context, op string, names []string, do func() error) error {
			if op == zfs.OpList && names[0] == "vault/a" {
				time.Sleep(5 * time.Minute)
			}
			return do()
		}
		w.beta.Around = func(_ context.Context, op string, _ []string, do func() error) error {
			if op == zfs.OpSnapshot {
				taken = time.Now()
			}
			return do()
		}
		r.run()
		require.Less(t, taken.Sub(w.login), 10*time.Second)
	})
}

// TestStandbyDuringSurvey expects that a source that became a copy while the run listed it gets no
// snapshot, and is not sent.
func TestStandbyDuringSurvey(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.replication("tank/a", takes, "beta:vault/a")
		r.run()
		w.write("tank/a")
		listed := false
		w.local.Around = func(_ context.Context, op string, names []string, do func() error) error {
			if op == zfs.OpList && names[0] == "tank/a" && !listed {
				listed = true
				time.Sleep(30 * time.Second)
				role := zfs.Role{Kind: zfs.RoleStandby, ID: "0123456789abcdef", Job: "j", Target: "t0", Since: time.Now()}
				w.local.Set("tank/a", zfs.RoleProperty, role.String())
			}
			return do()
		}
		source, target := len(w.local.Versions("tank/a")), len(w.beta.Versions("vault/a"))
		time.Sleep(time.Hour)
		run := runner.New(r.dir, r.world, time.Now, func(s string) { t.Log(s) })
		_, err := run.Run(w.t.Context(), &r.job, true)
		require.NoError(t, run.Env.Close())
		require.ErrorContains(t, err, "became a copy")
		require.Len(t, w.local.Versions("tank/a"), source)
		require.Len(t, w.beta.Versions("vault/a"), target)
		time.Sleep(time.Minute) // until the agents have ended
	})
}
