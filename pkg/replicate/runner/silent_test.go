package runner

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// silence makes each operation on a pool wait until speak is called, like a host that does not answer.
func (r *replica) silence(pool string) (speak func()) {
	around, speaks := r.Around, make(chan struct{})
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		about := func(n string) bool { return zfs.PoolOf(n) == pool }
		if slices.ContainsFunc(names, about) || op == zfs.OpImport || op == zfs.OpStatus && pool == "offsite" {
			select {
			case <-speaks:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return around(ctx, op, names, do)
	}
	return sync.OnceFunc(func() { close(speaks) })
}

// TestSnapshotsDoNotWaitForSilentTargets expects that a target that does not answer does not delay the snapshots of
// the source.
func TestSnapshotsDoNotWaitForSilentTargets(t *testing.T) {
	t.Parallel()
	take := replicate.Snapshots{Take: "s%Y%m%d-%H%M%S"}
	skip := take
	skip.SkipUnchanged = true
	far := []replicate.Target{{Name: "far", To: "far/copy"}}
	for name, tt := range map[string]struct {
		make func(t *testing.T) *replica
		pool string
	}{
		"one of two targets":      {func(t *testing.T) *replica { return newReplica(t, replicate.Job{Snapshots: take, Targets: far}) }, "far"},
		"with unchanged datasets": {func(t *testing.T) *replica { return newReplica(t, replicate.Job{Snapshots: skip, Targets: far}) }, "far"},
		"a disk":                  {func(t *testing.T) *replica { return newDisks(t, nil) }, "offsite"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tt.make(t)
			for _, n := range []string{"src/b", "src/c", "src/d", "src/e"} {
				r.Create(n, nil)
			}
			for range 3 {
				r.run(t)
				r.now += 100
			}
			r.Set("src/a", "written", "100")
			before := len(r.names("src/a"))
			speak := r.silence(tt.pool)
			defer speak()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = r.runner(t).Run(t.Context(), r.job, true)
			}()
			require.Eventually(t, func() bool { return len(r.names("src/a")) > before }, testenv.Timeout(), time.Millisecond)
			speak()
			<-ended
		})
	}
}

// TestPromotedCopyGetsNothing expects that a run sends nothing to a promoted copy, and nothing to other targets. A
// promotion that the source does not know costs one snapshot, and further runs take none.
func TestPromotedCopyGetsNothing(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M%S"}, Targets: []replicate.Target{{Name: "far", To: "far/copy"}}})
	r.run(t)
	role := zfs.Role{Kind: zfs.RoleSource, ID: "0123456789abcdef", Job: "j", Target: "far", Since: time.Unix(r.now, 0)}
	r.Set("far/copy", zfs.RoleProperty, role.String())
	source, copies := len(r.names("src/a")), len(r.names("far/copy/a"))+len(r.names("dst/copy/a"))
	for i := range 3 {
		r.now += 100
		_, err := r.runner(t).Run(t.Context(), r.job, true)
		require.ErrorContains(t, err, "the copy became the source")
		require.Equal(t, i > 0, fault.ClassOf(err) == fault.Refused, "refused means that nothing was changed")
		require.Len(t, r.names("src/a"), source+1)
		require.Equal(t, copies, len(r.names("far/copy/a"))+len(r.names("dst/copy/a")))
	}
}

// TestStandbySourceGetsNoSnapshot expects that a run takes no snapshot of a source that became a copy, or is becoming
// one, which would block its next receive, even if no target answers.
func TestStandbySourceGetsNoSnapshot(t *testing.T) {
	t.Parallel()
	for _, kind := range []zfs.RoleKind{zfs.RoleStandby, zfs.RoleHandover} {
		r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M%S"}})
		r.run(t)
		r.now += 100
		role := zfs.Role{Kind: kind, ID: "0123456789abcdef", Job: "j", Target: "t", Since: time.Unix(r.now, 0)}
		r.Set("src", zfs.RoleProperty, role.String())
		r.away = "dst"
		before := r.names("src/a")
		_, err := r.runner(t).Run(t.Context(), r.job, true)
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%s: %v", kind, err)
		require.Equal(t, before, r.names("src/a"), kind)
	}
}
