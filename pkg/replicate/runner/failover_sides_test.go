package runner

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/zfs"
)

const farTarget = "[[job.target]]\nname = \"far\"\nto = \"far/a\"\n"

// newTwoTargets returns a pair whose job file is text and whose jobs ran once. It also has the pool far.
func newTwoTargets(t *testing.T, text string, jobs ...string) *rolePair {
	t.Helper()
	p := newRolePair(t)
	p.Create("far", nil)
	require.NoError(t, os.WriteFile(p.file, []byte(text), 0o600))
	for _, j := range jobs {
		require.NoError(t, p.runJob(t, j))
	}
	return p
}

// killAfterRole starts a switch of home to near, and stops it when the copy is the source and writable.
func (p *rolePair) killAfterRole(t *testing.T) {
	t.Helper()
	killed, around := errors.New("killed"), p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if p.Get("dst/copy/a", zfs.RoleProperty) != "" && p.Get("dst/copy/a", "readonly") == "off" {
			return killed
		}
		return around(ctx, op, names, do)
	}
	_, err := p.doSwitch(t, "home", failover.Options{Target: "near"})
	require.Error(t, err)
	p.Around = around
	require.Equal(t, zfs.RoleHandover, p.role(t, "src/a").Kind)
	require.Equal(t, zfs.RoleSource, p.role(t, "dst/copy/a").Kind)
}

// TestHandoverOfAnother expects that an unfinished switch is neither aborted nor completed by a
// command for another target or job: its copy may be the source already.
func TestHandoverOfAnother(t *testing.T) {
	t.Parallel()
	other := strings.NewReplacer(`"home"`, `"other"`, "dst/copy/a", "far/a").Replace(pairText)
	for name, c := range map[string]struct {
		text string
		jobs []string
		job  string
		o    failover.Options
	}{
		"abort, another target":  {pairText + farTarget, []string{"home"}, "home", failover.Options{Target: "far", Abort: true}},
		"switch, another target": {pairText + farTarget, []string{"home"}, "home", failover.Options{Target: "far", Mountpoint: "none"}},
		"abort, another job":     {pairText + other, []string{"home", "other"}, "other", failover.Options{Abort: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newTwoTargets(t, c.text, c.jobs...)
			p.killAfterRole(t)
			state := p.state()
			_, err := p.doSwitch(t, c.job, c.o)
			require.Equal(t, fault.Refused, fault.ClassOf(err), err)
			require.Contains(t, fault.HintOf(err), "zxfer replicate switch home near")
			require.Equal(t, state, p.state())
			err = p.runJob(t, c.job)
			require.Equal(t, fault.Refused, fault.ClassOf(err), err)
			require.Contains(t, fault.HintOf(err), "zxfer replicate switch home near")
			_, err = p.doSwitch(t, "home", failover.Options{Target: "near"})
			require.NoError(t, err)
			require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
		})
	}
}

// TestPromoteSecondCopy expects that only one copy of a job becomes the source.
func TestPromoteSecondCopy(t *testing.T) {
	t.Parallel()
	p := newTwoTargets(t, pairText+farTarget, "home")
	_, err := p.doPromote(t, failover.Options{Target: "near", SourceAlive: true})
	require.NoError(t, err)
	state := p.state()
	_, err = p.doPromote(t, failover.Options{Target: "far", SourceAlive: true, Mountpoint: "none"})
	require.Equal(t, fault.Refused, fault.ClassOf(err), err)
	require.ErrorContains(t, err, "its copy dst/copy/a became the source")
	require.Equal(t, state, p.state())
	_, err = p.doSwitch(t, "home", failover.Options{Target: "far", Mountpoint: "none"})
	require.Equal(t, fault.Refused, fault.ClassOf(err), err)
	require.ErrorContains(t, err, "its copy dst/copy/a became the source")
	require.Equal(t, state, p.state())
}

// TestPromoteOnHostOfSource expects that the source counts as reachable on the host that runs the
// job, also if the target names this host.
func TestPromoteOnHostOfSource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	require.NoError(t, os.WriteFile(p.file, []byte(strings.Replace(pairText, "dst/copy/a", "localhost:dst/copy/a", 1)), 0o600))
	_, err := p.doPromote(t, failover.Options{Mountpoint: "none"})
	require.Equal(t, fault.Refused, fault.ClassOf(err), err)
	require.ErrorContains(t, err, "two sides would be writable")
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
}

// TestBusySwitchBackKeepsRole expects that a switch back which changes nothing leaves the role of the
// present source.
func TestBusySwitchBackKeepsRole(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.NoError(t, p.runJob(t, "home"))
	was, around := p.role(t, "dst/copy/a"), p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpUnmount {
			return errors.New("busy")
		}
		return around(ctx, op, names, do)
	}
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.ErrorContains(t, err, "the source is writable again")
	p.Around = around
	now := p.role(t, "dst/copy/a")
	require.Equal(t, []string{string(zfs.RoleSource), was.ID, was.Job, was.Target}, []string{string(now.Kind), now.ID, now.Job, now.Target})
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.NoError(t, p.runJob(t, "home"))
}

// TestAbortWithoutTarget loses the target in the middle of a switch.
func TestAbortWithoutTarget(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{Abort: true, TargetLost: true})
	require.ErrorContains(t, err, "can be reached")
	around := p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if p.Get("src/a", zfs.RoleProperty) != "" && p.Get("src/a", "readonly") == "on" && len(names) > 0 && strings.HasPrefix(names[0], "dst") {
			return errors.New("host is down")
		}
		return around(ctx, op, names, do)
	}
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.ErrorContains(t, err, "host is down")
	require.Empty(t, p.writable())
	_, err = p.doSwitch(t, "home", failover.Options{Abort: true})
	require.Contains(t, fault.HintOf(err), "zxfer replicate switch --abort --target-lost home near")
	require.Empty(t, p.writable())
	_, err = p.doSwitch(t, "home", failover.Options{Abort: true, TargetLost: true})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	require.Empty(t, p.role(t, "src/a").Kind)
	require.Equal(t, "yes", p.Get("src/a", "mounted"))
}

// staleHolds returns the number of stale holds of job home.
func (p *rolePair) staleHolds(t *testing.T) (n int) {
	t.Helper()
	held, err := holds.List(t.Context(), p.runner(t).Env, p.jobs(t), false)
	require.NoError(t, err)
	for _, h := range held {
		if h.Tag == replicate.Tag("home", "near") && h.Stale {
			n++
		}
	}
	return n
}

// TestHoldsOfPromotion kills a run between its receives and its holds, and promotes the copy. It expects that
// the holds on the common snapshots, which that run did not record, are not stale.
func TestHoldsOfPromotion(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.Write("src/a", []byte("new"))
	killed, around := errors.New("killed"), p.Around
	var received atomic.Int32
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		switch {
		case op == zfs.OpReceive:
			received.Add(1)
		case received.Load() >= 2 && op != zfs.OpSend:
			return killed
		}
		return around(ctx, op, names, do)
	}
	require.Error(t, p.runJob(t, "home"))
	p.Around = around
	_, err := p.doPromote(t, failover.Options{SourceAlive: true})
	require.NoError(t, err)
	latest := p.names("dst/copy/a")[1]
	for _, d := range []string{"src/a", "src/a/c", "dst/copy/a", "dst/copy/a/c"} {
		require.Equal(t, []string{"zxfer:home:near"}, p.held(d+"@"+latest))
	}
	require.Zero(t, p.staleHolds(t))
}

// TestRoleHintNamesTarget expects that the hints of a job with several targets name one.
func TestRoleHintNamesTarget(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("far", nil)
	require.NoError(t, os.WriteFile(p.file, []byte(pairText+farTarget), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doPromote(t, failover.Options{Target: "far"})
	require.Contains(t, fault.HintOf(err), "zxfer replicate switch home far")
	f, err := p.doPromote(t, failover.Options{Target: "near", SourceAlive: true})
	require.NoError(t, err)
	require.Equal(t, []string{"when the former source returns, make it a copy: zxfer replicate switch home near"}, f.Next)
	err = p.runJob(t, "home")
	require.Equal(t, "to make the former source a copy: zxfer replicate switch home near", fault.HintOf(err))
}

// requireNoStale requires that no hold of job home is stale.
func (p *rolePair) requireNoStale(t *testing.T) {
	t.Helper()
	held, err := holds.List(t.Context(), p.runner(t).Env, p.jobs(t), false)
	require.NoError(t, err)
	require.NotEmpty(t, held)
	for _, h := range held {
		require.False(t, h.Stale, "%s of %s", h.Tag, h.Snapshot)
	}
}

// TestSwitchOthersFollow switches a job with two targets there and back. It expects that the other target follows the new
// source by increments, and that each pair has held common snapshots at any time.
func TestSwitchOthersFollow(t *testing.T) {
	t.Parallel()
	p := newTwoTargets(t, pairText+farTarget, "home")
	p.Write("src/a", []byte("one"))
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{Target: "near"})
	require.NoError(t, err)
	base := p.names("far/a")[len(p.names("far/a"))-1]
	require.Contains(t, p.held("dst/copy/a@"+base), "zxfer:home:far")
	require.NotContains(t, p.held("src/a@"+base), "zxfer:home:far", "its hold is on the new source")
	p.requireNoStale(t)

	p.Write("dst/copy/a", []byte("two"))
	p.away = "far" // it stays behind
	require.Error(t, p.runJob(t, "home"))
	require.Contains(t, p.held("dst/copy/a@"+base), "zxfer:home:far")
	p.away = ""
	require.NoError(t, p.runJob(t, "home"))
	latest := p.names("dst/copy/a")[len(p.names("dst/copy/a"))-1]
	for _, d := range []string{"src/a", "far/a", "far/a/c"} {
		require.Contains(t, p.names(d), latest)
	}
	require.Equal(t, []string{"zxfer:home:far", "zxfer:home:near"}, p.held("dst/copy/a@"+latest))
	require.Equal(t, []string{"zxfer:home:far"}, p.held("far/a@"+latest))
	require.Equal(t, []string{"zxfer:home:near"}, p.held("src/a@"+latest))
	p.requireNoStale(t)

	_, err = p.doSwitch(t, "home", failover.Options{Target: "far"})
	require.Equal(t, fault.Refused, fault.ClassOf(err), err)
	require.Equal(t, "switch back first: zxfer replicate switch home near", fault.HintOf(err))
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err, "without a target, it switches back")
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	p.requireNoStale(t)
	p.Write("src/a", []byte("three"))
	require.NoError(t, p.runJob(t, "home"))
	latest = p.names("src/a")[len(p.names("src/a"))-1]
	for _, d := range []string{"dst/copy/a", "far/a"} {
		require.Contains(t, p.names(d), latest)
	}
	require.Equal(t, []string{"zxfer:home:far", "zxfer:home:near"}, p.held("src/a@"+latest))
	p.requireNoStale(t)
	_, err = p.doSwitch(t, "home", failover.Options{Target: "far", Mountpoint: "none"})
	require.NoError(t, err, "then also to the other one")
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, zfs.RoleSource, p.role(t, "far/a").Kind)
}

// TestRunFromPromotedCopy loses the source of two copies. It expects that the same job runs from the promoted copy, and
// that it refuses when the source returns, until a switch makes that a copy.
func TestRunFromPromotedCopy(t *testing.T) {
	t.Parallel()
	p := newTwoTargets(t, pairText+farTarget, "home")
	p.away = "src"
	_, err := p.doPromote(t, failover.Options{Target: "near"})
	require.NoError(t, err)
	p.Write("dst/copy/a", []byte("two"))
	p.now += 100
	run, err := p.runner(t).Run(t.Context(), p.jobs(t).Find("home"), true)
	require.Error(t, err, "the former source is away")
	require.Equal(t, []any{"dst/copy/a", 2, outcome.Failed, outcome.Done}, []any{run.Source, run.Snapshots, run.Targets[0].Outcome, run.Targets[1].Outcome})
	require.Contains(t, p.names("far/a"), p.names("dst/copy/a")[len(p.names("dst/copy/a"))-1])
	p.away = ""
	former := p.state()["src/a"]
	require.ErrorContains(t, p.runJob(t, "home"), "the copy became the source")
	require.Equal(t, former, p.state()["src/a"])
	state := p.state()
	require.Equal(t, fault.Refused, fault.ClassOf(p.runJob(t, "home")))
	require.Equal(t, state, p.state())
	_, err = p.doSwitch(t, "home", failover.Options{Target: "near"})
	require.NoError(t, err)
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
}

// TestPromoteFormerSource loses the new source after a switch, and promotes the former one.
func TestPromoteFormerSource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	_, err = p.doPromote(t, failover.Options{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "the source is alive")
	p.away = "dst"
	_, err = p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.Equal(t, zfs.RoleSource, p.role(t, "src/a").Kind)
	require.Equal(t, "yes", p.Get("src/a", "mounted"))
	p.away = ""
	state := p.state()["dst/copy/a"]
	require.ErrorContains(t, p.runJob(t, "home"), "the copy became the source", "both were the source")
	require.Equal(t, state, p.state()["dst/copy/a"])
	require.Equal(t, fault.Refused, fault.ClassOf(p.runJob(t, "home")))
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	require.Equal(t, zfs.RoleStandby, p.role(t, "dst/copy/a").Kind)
	p.Write("src/a", []byte("two"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("src/a"), p.names("dst/copy/a"))
}

// TestSwitchAnswerLost loses the answer to the last change of a switch. The same command completes it, and does not
// switch back. The command after it does.
func TestSwitchAnswerLost(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	around := p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		err := around(ctx, op, names, do)
		if p.role(t, "src/a").Kind == zfs.RoleStandby {
			return errors.New("killed")
		}
		return err
	}
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.Error(t, err)
	p.Around = around
	f, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Empty(t, f.Steps)
	require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
}

// TestDirectionWithoutRecords expects that the roles on the datasets decide, also if another host switched, so that the
// records of this host have the other direction. A drill reads the copy that is one now.
func TestDirectionWithoutRecords(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	mine := p.dir
	p.dir = t.TempDir()
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	p.dir = mine
	p.Write("dst/copy/a", []byte("two"))
	preview, err := p.runner(t).Preview(t.Context(), p.jobs(t).Find("home"))
	require.NoError(t, err)
	require.Equal(t, []any{"dst/copy/a", "former-source", "src/a"}, []any{preview.Source, preview.Targets[0].Target, preview.Targets[0].To})
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
	p.dir = t.TempDir()
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	p.dir = mine
	_, err = p.runner(t).Prune(t.Context(), p.jobs(t).Find("home"), false, false)
	require.NoError(t, err)
	p.Write("src/a", []byte("three"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("src/a"), p.names("dst/copy/a"))
}

// TestStandbyOfUnknownTarget renames the target of a switched job. It expects that no run sends from the former source,
// also if the target cannot be reached, and that another job of that source is refused, too.
func TestStandbyOfUnknownTarget(t *testing.T) {
	t.Parallel()
	other := strings.NewReplacer(`"home"`, `"other"`, "dst/copy/a", "far/a").Replace(pairText)
	p := newTwoTargets(t, pairText+other, "home", "other")
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	for _, away := range []string{"", "dst", "far"} {
		state := p.state()
		p.away = away
		err = p.runJob(t, "other")
		p.away = ""
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, "src/a became a copy by job \"home\"")
		require.Equal(t, state, p.state())
	}
	for _, away := range []string{"dst", ""} {
		require.NoError(t, os.WriteFile(p.file, []byte(strings.Replace(pairText, `"near"`, `"renamed"`, 1)), 0o600))
		p.dir = t.TempDir()
		state := p.state()["src/a"]
		p.away = away
		err = p.runJob(t, "home")
		p.away = ""
		if away == "" {
			require.NoError(t, err, "the role on the copy says that it is the source")
			continue
		}
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.Equal(t, state, p.state()["src/a"])
	}
}

// TestRunWithFileOfOtherHost promotes a copy with the job file of the lost source's host, and runs the job with it. The
// dataset of this host that has the name of the source is not the source: the run refuses, and names the line to write.
func TestRunWithFileOfOtherHost(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	own, err := os.Hostname()
	require.NoError(t, err)
	p.rename("src/a/c", "src/x")
	p.rename("src/a", "src/y")
	p.dir = t.TempDir()
	require.NoError(t, os.WriteFile(p.file, []byte(strings.Replace(pairText, "dst/copy/a", own+":dst/copy/a", 1)), 0o600))
	_, err = p.doPromote(t, failover.Options{Mountpoint: "none"})
	require.NoError(t, err)
	state := p.state()
	for range 2 {
		err = p.runJob(t, "home")
		require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
		require.ErrorContains(t, err, `target "near" is this host`)
		require.Equal(t, "write the former source's host into the job file: source = \"HOST:src/a\"", fault.HintOf(err))
	}
	require.Equal(t, state, p.state())
	require.NotContains(t, p.datasets("src"), "src/a")
}
