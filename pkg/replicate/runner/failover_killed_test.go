package runner

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/zfs"
)

// TestSwitchKilled stops a switch at each operation that changes something, before and after it takes effect. At most one
// side is writable then, and the same command, or --abort, completes the change.
func TestSwitchKilled(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for at, ended := 0, false; !ended; at++ {
		require.Less(t, at, 400)
		for _, applied := range []bool{false, true} {
			p := newRolePair(t)
			p.Write("src/a", []byte("one"))
			require.NoError(t, p.runJob(t, "home"))
			p.Write("src/a", []byte("two"))
			n, dead := 0, false
			var counting sync.Mutex // operations of both sides are concurrent
			// next counts an operation that changes something. It reports whether the process is dead, and
			// whether it dies at this operation.
			next := func(changes bool) (isDead, dies bool) {
				counting.Lock()
				defer counting.Unlock()
				if dead || !changes {
					return dead, false
				}
				n++
				dead = n-1 == at
				return false, dead
			}
			around := p.Around
			p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
				isDead, dies := next(op != zfs.OpList && op != zfs.OpGet && op != zfs.OpSync)
				if dies && applied {
					_ = around(ctx, op, names, do)
				}
				if isDead || dies {
					return killed
				}
				return around(ctx, op, names, do)
			}
			_, err := p.doSwitch(t, "home", failover.Options{})
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
			state, _ := decide.ObserveRoles(decide.RoleSide{Reached: true, Exists: true, Role: p.role(t, "src/a")}, decide.RoleSide{Reached: true, Exists: true, Role: p.role(t, "dst/copy/a")})
			if state == decide.Handover && at%2 == 0 {
				_, err = p.doSwitch(t, "home", failover.Options{Abort: true})
				require.NoError(t, err, "operation %d", at)
				require.Equal(t, []string{"src/a", "src/a/c"}, p.writable(), "operation %d", at)
				require.Equal(t, "yes", p.Get("src/a", "mounted"))
				require.NoError(t, p.runJob(t, "home"), "operation %d", at)
			}
			_, err = p.doSwitch(t, "home", failover.Options{})
			require.NoError(t, err, "operation %d, applied %v, state %q", at, applied, state)
			require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable(), "operation %d, state %q", at, state)
			require.Equal(t, []string{"/data", "on", "yes"}, []string{p.Get("dst/copy/a", "mountpoint"), p.Get("dst/copy/a", "canmount"), p.Get("dst/copy/a", "mounted")}, "operation %d, state %q", at, state)
			require.NoError(t, p.runJob(t, "home"), "operation %d", at)
		}
	}
}

// TestPromoteKilled stops a promotion at each operation that changes something. The same command
// completes it.
func TestPromoteKilled(t *testing.T) {
	t.Parallel()
	killed := errors.New("killed")
	for at, ended := 0, false; !ended; at++ {
		require.Less(t, at, 100)
		p := newRolePair(t)
		require.NoError(t, p.runJob(t, "home"))
		p.away = "src"
		n, dead, around := 0, false, p.Around
		var counting sync.Mutex
		kills := func(op string) bool {
			counting.Lock()
			defer counting.Unlock()
			changes := op != zfs.OpList && op != zfs.OpGet
			if dead = dead || changes && n == at; !dead && changes {
				n++
			}
			return dead
		}
		p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
			if kills(op) {
				return killed
			}
			return around(ctx, op, names, do)
		}
		_, err := p.doPromote(t, failover.Options{})
		p.Around, ended = around, !dead
		require.Equal(t, dead, err != nil)
		_, err = p.doPromote(t, failover.Options{})
		require.NoError(t, err, "operation %d", at)
		for name, path := range map[string]string{"dst/copy/a": "/data", "dst/copy/a/c": "/srv/elsewhere"} {
			require.Equal(t, []string{path, "on", "yes", "off"}, []string{p.Get(name, "mountpoint"), p.Get(name, "canmount"), p.Get(name, "mounted"), p.Get(name, "readonly")}, "operation %d, %s", at, name)
		}
		require.Contains(t, p.held("dst/copy/a@"+p.names("dst/copy/a")[0]), replicate.Tag("home", "near"))
	}
}
