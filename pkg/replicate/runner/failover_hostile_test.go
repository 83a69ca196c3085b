package runner

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/zfs"
)

// TestPromotedRelayTarget promotes the last copy of a chain, or has its host claim so. It expects that no run sends back to
// the copy between, which another job receives.
func TestPromotedRelayTarget(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("far", nil)
	relay := strings.NewReplacer(`"home"`, `"relay"`, "take = \"{job}-%Y%m%dT%H%M%SZ\"", `adopt = ["home-*"]`, `"dst/copy/a"`, `"far/a"`, `"src/a"`, `"dst/copy/a"`).Replace(pairText)
	require.NoError(t, os.WriteFile(p.file, []byte(pairText+relay), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	require.NoError(t, p.runJob(t, "relay"))
	p.now += 100
	_, err := p.Promote(t, p.jobs(t).Find("relay"), failover.Options{SourceAlive: true, Mountpoint: "none"})
	require.NoError(t, err)
	p.Write("far/a", []byte("evil"))
	p.snapshot("far/a", "home-20990101T000000Z")
	between := p.state()["dst/copy/a"]
	for range 2 {
		require.Equal(t, fault.Refused, fault.ClassOf(p.runJob(t, "relay")))
		require.Equal(t, between, p.state()["dst/copy/a"])
	}
}

// TestPromoteFormerSourceMissing destroys the new source after a switch, while its host is up, and promotes the former one.
func TestPromoteFormerSourceMissing(t *testing.T) {
	t.Parallel()
	p := newTwoTargets(t, pairText+farTarget, "home")
	_, err := p.doSwitch(t, "home", failover.Options{Target: "near"})
	require.NoError(t, err)
	p.Edit(func(all map[string]*zfs.Dataset) {
		delete(all, "dst/copy/a")
		delete(all, "dst/copy/a/c")
	})
	require.Error(t, p.runJob(t, "home"))
	_, err = p.doPromote(t, failover.Options{Target: "near"})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	require.NoError(t, p.runJob(t, "home"))
	require.Contains(t, p.names("dst/copy/a"), p.names("src/a")[len(p.names("src/a"))-1])
}

// TestAbortSwitchBackWithoutFormerSource interrupts a switch back, and loses the host of the former source. It expects
// that --abort --target-lost makes the present source writable again.
func TestAbortSwitchBackWithoutFormerSource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	around := p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpSnapshot && strings.Contains(names[0], failover.SnapshotPrefix) {
			return errors.New("killed")
		}
		return around(ctx, op, names, do)
	}
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.Error(t, err)
	p.Around = around
	require.Empty(t, p.writable())
	p.away = "src"
	err = p.runJob(t, "home")
	require.ErrorContains(t, err, "a switch to the copy is in progress")
	_, err = p.doSwitch(t, "home", failover.Options{Abort: true})
	require.Contains(t, fault.HintOf(err), "--abort --target-lost home near")
	_, err = p.doSwitch(t, "home", failover.Options{Abort: true, TargetLost: true})
	require.NoError(t, err)
	require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
	p.away = ""
	require.NoError(t, p.runJob(t, "home"))
}

// TestSwitchBackKilled stops a switch back of a job with two targets at each operation after the handover began that changes something. At most one
// side is writable then. The same command, also after holds --gc, and a run after it complete the change, and leave no stale hold.
func TestSwitchBackKilled(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for at, ended := 0, false; !ended; at++ {
		require.Less(t, at, 400)
		for _, applied := range []bool{false, true} {
			p := newTwoTargets(t, pairText+farTarget, "home")
			p.Write("src/a", []byte("one"))
			_, err := p.doSwitch(t, "home", failover.Options{Target: "near"})
			require.NoError(t, err)
			p.Write("dst/copy/a", []byte("two"))
			require.NoError(t, p.runJob(t, "home"))
			p.Write("dst/copy/a/c", []byte("three"))
			n, dead, around := 0, false, p.Around
			var counting sync.Mutex
			p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
				counting.Lock()
				was := dead
				begun := p.role(t, "dst/copy/a").Kind == zfs.RoleHandover
				if begun && op != zfs.OpList && op != zfs.OpGet && op != zfs.OpSync && !dead {
					dead = n == at
					n++
				}
				now := dead
				counting.Unlock()
				if !was && now && applied {
					_ = around(ctx, op, names, do)
				}
				if now {
					return killed
				}
				return around(ctx, op, names, do)
			}
			_, err = p.doSwitch(t, "home", failover.Options{})
			p.Around = around
			if !dead {
				require.NoError(t, err)
				ended = true
				break
			}
			sides := map[string]bool{}
			for _, n := range p.writable() {
				sides[zfs.PoolOf(n)] = true
			}
			require.LessOrEqual(t, len(sides), 1, "operation %d: both sides are writable: %v", at, p.writable())
			if at%2 == 1 {
				_ = p.runJob(t, "home")
				_, err := holds.List(t.Context(), p.runner(t).Env, p.jobs(t), true)
				require.NoError(t, err)
			}
			if at%2 == 0 || p.role(t, "dst/copy/a").Kind != zfs.RoleStandby { // a run completes a switch whose last answer was lost
				_, err = p.doSwitch(t, "home", failover.Options{})
				require.NoError(t, err, "operation %d, applied %v", at, applied)
			}
			require.Equal(t, []string{"src/a", "src/a/c"}, p.writable(), "operation %d, applied %v", at, applied)
			p.Write("src/a", []byte("four"))
			require.NoError(t, p.runJob(t, "home"), "operation %d", at)
			p.requireNoStale(t)
			latest := p.names("src/a")[len(p.names("src/a"))-1]
			require.Equal(t, []string{"zxfer:home:far", "zxfer:home:near"}, p.held("src/a@"+latest))
			for _, d := range []string{"dst/copy/a", "far/a"} {
				require.Contains(t, p.names(d), latest)
			}
		}
	}
}
