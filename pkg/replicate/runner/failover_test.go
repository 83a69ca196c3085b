package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/failover"
	"zxfer/pkg/replicate/holds"
	"zxfer/pkg/replicate/jobfile"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// rolePair is a replica with the source src/a and the copy dst/copy/a, each with a child, and their
// job file.
type rolePair struct {
	*replica
	file string
}

const pairText = `[[job]]
name = "home"
source = "src/a"
recursive = true
snapshots = { take = "{job}-%Y%m%dT%H%M%SZ" }
retention = { last = 5 }
retries = 0
[[job.target]]
name = "near"
to = "dst/copy/a"
retention = { last = 9 }
`

func newRolePair(t *testing.T) *rolePair {
	t.Helper()
	p := &rolePair{newReplica(t, adopting()), filepath.Join(t.TempDir(), "replicate.toml")}
	require.NoError(t, os.WriteFile(p.file, []byte(pairText), 0o640))
	p.Create("src/a/c", nil)
	for name, at := range map[string]string{"src/a": "/data", "src/a/c": "/data/c"} {
		p.Set(name, "mountpoint", at)
		p.Set(name, "canmount", "on")
		p.Set(name, "mounted", "yes")
	}
	p.Set("src/a/c", "mountpoint", "/srv/elsewhere")
	for _, n := range []string{"src/a", "src/a/c"} {
		p.Set(n, "readonly", "off") // the simulation inherits nothing
	}
	return p
}

func (p *rolePair) jobs(t *testing.T) *replicate.File {
	t.Helper()
	text, err := os.ReadFile(p.file)
	require.NoError(t, err)
	f, err := jobfile.Parse(p.file, text)
	require.NoError(t, err)
	return f
}

func (p *rolePair) runJob(t *testing.T, name string) error {
	t.Helper()
	p.now += 100
	_, err := p.runner(t).Run(t.Context(), p.jobs(t).Find(name), true)
	return err
}

// Switch calls failover.Switch, as in another process.
func (p *rolePair) Switch(t *testing.T, j *replicate.Job, o failover.Options) (*failover.Result, error) {
	r := p.runner(t)
	return failover.Switch(t.Context(), r.Env, Parts{r}, j, o)
}

// Promote calls failover.Promote, as in another process.
func (p *rolePair) Promote(t *testing.T, j *replicate.Job, o failover.Options) (*failover.Result, error) {
	r := p.runner(t)
	return failover.Promote(t.Context(), r.Env, Parts{r}, j, o)
}

func (p *rolePair) doSwitch(t *testing.T, name string, o failover.Options) (*failover.Result, error) {
	t.Helper()
	p.now += 100
	return p.Switch(t, p.jobs(t).Find(name), o)
}

func (p *rolePair) doPromote(t *testing.T, o failover.Options) (*failover.Result, error) {
	t.Helper()
	p.now += 100
	return p.Promote(t, p.jobs(t).Find("home"), o)
}

// writable returns the roots that programs can write to.
func (p *rolePair) writable() (names []string) {
	for _, n := range []string{"src/a", "src/a/c", "dst/copy/a", "dst/copy/a/c"} {
		own, above := p.Get(n, "readonly"), p.Get(zfs.ParentOf(n), "readonly")
		if p.Get(n, "guid") != "" && own != "on" && (own == "off" || above != "on") {
			names = append(names, n)
		}
	}
	return names
}

func (p *rolePair) role(t *testing.T, dataset string) zfs.Role {
	t.Helper()
	var r zfs.Role
	p.Edit(func(all map[string]*zfs.Dataset) {
		var err error
		r, err = zfs.RoleIn(all[dataset].Properties)
		require.NoError(t, err)
	})
	return r
}

// TestSwitchThereAndBack switches a pair, writes to the new source, and switches back.
func TestSwitchThereAndBack(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Write("src/a", []byte("one"))
	p.snapshot("src/a", failover.SnapshotPrefix+"mine")
	require.NoError(t, p.runJob(t, "home"))
	p.Write("src/a/c", []byte("two"))
	before := p.state()

	f, err := p.doSwitch(t, "home", failover.Options{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, outcome.Planned, f.Outcome)
	require.Equal(t, before, p.state(), "a dry run changed something")
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())

	f, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, outcome.Done, f.Outcome)
	require.NotZero(t, f.Bytes)
	require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
	a, b := p.role(t, "src/a"), p.role(t, "dst/copy/a")
	require.Equal(t, []any{zfs.RoleStandby, zfs.RoleSource, a.ID}, []any{a.Kind, b.Kind, b.ID})
	for name, want := range map[string][]string{"src/a": {"/data", "noauto", "no"}, "dst/copy/a": {"/data", "on", "yes"}, "dst/copy/a/c": {"/srv/elsewhere", "on", "yes"}} {
		require.Equal(t, want, []string{p.Get(name, "mountpoint"), p.Get(name, "canmount"), p.Get(name, "mounted")}, name)
	}

	// The same job runs in the other direction. Each place keeps its retention.
	p.Write("dst/copy/a", []byte("three"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, append([]string{failover.SnapshotPrefix + "mine"}, p.names("dst/copy/a")...), p.names("src/a"))
	latest := p.names("src/a")[len(p.names("src/a"))-1]
	require.Regexp(t, "^home-2026", latest)
	for _, d := range []string{"src/a", "src/a/c", "dst/copy/a", "dst/copy/a/c"} {
		require.Equal(t, []string{"zxfer:home:near"}, p.held(d+"@"+latest))
	}
	js := status.Of([]*replicate.Job{p.jobs(t).Find("home")}, p.dir, time.Unix(p.now, 0), nil).Jobs[0]
	require.Equal(t, []any{"dst/copy/a", b.Since, "former-source", status.OK}, []any{js.Source, js.Switched.Local(), js.Datasets[0].To, js.State})
	p.Write("dst/copy/a/c", []byte("four"))
	f, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.NotZero(t, f.Bytes)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	require.Equal(t, []string{"/data", "on", "yes"}, []string{p.Get("src/a", "mountpoint"), p.Get("src/a", "canmount"), p.Get("src/a", "mounted")})
	p.Write("src/a", []byte("five"))
	require.NoError(t, p.runJob(t, "home"), "increments continue")
	require.Equal(t, failover.SnapshotPrefix+"mine", p.names("src/a")[0], "a snapshot of the user")
	p.destroy("src/a@" + failover.SnapshotPrefix + "mine")
	for _, n := range []string{"dst/copy/a", "dst/copy/a/c"} {
		all := p.names(n)
		require.Equal(t, p.names(strings.Replace(n, "dst/copy", "src", 1)), all)
		require.Equal(t, 1, len(slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, failover.SnapshotPrefix) })), "one snapshot of a switch remains")
	}
}

// TestPromote promotes the copy of a lost source, and makes the source a copy when it returns.
func TestPromote(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Write("src/a", []byte("one"))
	require.NoError(t, p.runJob(t, "home"))

	_, err := p.doPromote(t, failover.Options{})
	require.Equal(t, fault.Refused, fault.ClassOf(err), "the source is alive")
	require.Contains(t, fault.HintOf(err), "zxfer replicate switch home")

	p.away = "src"
	f, err := p.doPromote(t, failover.Options{DryRun: true})
	require.NoError(t, err)
	require.NotEmpty(t, f.Steps)
	require.Empty(t, p.role(t, "dst/copy/a").Kind)
	_, err = p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.Equal(t, zfs.RoleSource, p.role(t, "dst/copy/a").Kind)
	require.Equal(t, []string{"/data", "on", "yes", "off"}, []string{p.Get("dst/copy/a", "mountpoint"), p.Get("dst/copy/a", "canmount"), p.Get("dst/copy/a", "mounted"), p.Get("dst/copy/a", "readonly")})
	f, err = p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	require.Empty(t, f.Steps, "it is idempotent")
	p.Write("dst/copy/a", []byte("two"))

	p.away = ""
	former := p.state()["src/a"]
	require.ErrorContains(t, p.runJob(t, "home"), "the copy became the source")
	require.Equal(t, former, p.state()["src/a"])
	state := p.state()
	require.Equal(t, fault.Refused, fault.ClassOf(p.runJob(t, "home")))
	require.Equal(t, state, p.state(), "the old job changed something")

	// The former source has newer data.
	p.Write("src/a", []byte("lost"))
	p.snapshot("src/a/c", "mine")
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "src/a/c@mine")
	require.ErrorContains(t, err, "data written to src/a after")
	require.Contains(t, p.writable(), "src/a", "a refusal changes nothing")
	_, err = p.doSwitch(t, "home", failover.Options{Rollback: true})
	require.NoError(t, err)
	require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
	require.Equal(t, zfs.RoleStandby, p.role(t, "src/a").Kind)
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
}

// TestDemoteByRename keeps the data of a former source under another name.
func TestDemoteByRename(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.away = "src"
	_, err := p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	p.away = ""
	p.Write("src/a", []byte("lost"))
	_, err = p.doSwitch(t, "home", failover.Options{Rotate: true})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(p.datasets("src"), func(n string) bool { return strings.HasPrefix(n, "src/a.zxfer-") }), "%v", p.datasets("src"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
	p.Write("dst/copy/a", []byte("two"))
	require.NoError(t, p.runJob(t, "home"), "the new dataset is a copy, although it has no role")
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	p.Write("src/a", []byte("three"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a"), p.names("src/a"))
}

// TestHoldsOfRenamedSource expects that holds lists the holds of a former source that a switch renamed,
// as stale, and that only --gc releases them.
func TestHoldsOfRenamedSource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.away = "src"
	_, err := p.doPromote(t, failover.Options{})
	require.NoError(t, err)
	p.away = ""
	p.Write("src/a", []byte("lost"))
	_, err = p.doSwitch(t, "home", failover.Options{Rotate: true})
	require.NoError(t, err)
	for _, d := range []string{"src/a.zxfer-old", "src/b.zxfer-2026-11-01T08-00-00Z"} { // not from a
		p.Create(d, nil)
		p.snapshot(d, "s")
		require.NoError(t, p.Hold(t.Context(), "zxfer:home:near", []string{d + "@s"}))
	}
	var former []string
	for _, d := range p.datasets("src") {
		if before, renamed := zfs.NameBeforeRename(d); renamed && strings.HasPrefix(before, "src/a") {
			former = append(former, d+"@"+p.names(d)[0])
		}
	}
	require.Len(t, former, 2)
	require.NoError(t, p.Hold(t.Context(), "mine", former))
	for _, reversed := range []bool{false, true} {
		if reversed {
			require.NoError(t, p.runJob(t, "home"))
		}
		before := p.state()
		held, err := holds.List(t.Context(), p.runner(t).Env, p.jobs(t), false)
		require.NoError(t, err)
		require.Equal(t, before, p.state(), "without --gc, nothing is released")
		found := 0
		for _, h := range held {
			require.NotContains(t, h.Snapshot, "zxfer-old")
			require.NotContains(t, h.Snapshot, "src/b")
			if slices.Contains(former, h.Snapshot) {
				found++
				require.True(t, h.Stale)
				require.Equal(t, "zxfer:home:near", h.Tag)
			} else if strings.HasPrefix(h.Tag, "zxfer:home:") {
				require.False(t, h.Stale, h.Snapshot)
			}
		}
		require.Equal(t, len(former), found)
	}
	p.before = func(op string, names []string) error { // a restricted key does not permit the parent
		if op == zfs.OpList && slices.Equal(names, []string{"src"}) {
			return hosts.ErrForbidden
		}
		return nil
	}
	held, err := holds.List(t.Context(), p.runner(t).Env, p.jobs(t), true)
	require.NoError(t, err)
	require.NotEmpty(t, held)
	require.Contains(t, p.held(former[0]), "zxfer:home:near")
	p.before = nil
	_, err = holds.List(t.Context(), p.runner(t).Env, p.jobs(t), true)
	require.NoError(t, err)
	for _, s := range former {
		require.Equal(t, []string{"mine"}, p.held(s))
	}
	require.Equal(t, []string{"zxfer:home:near"}, p.held("src/a.zxfer-old@s"))
	require.NoError(t, p.runJob(t, "home"))
}

// TestPromoteWithoutJobFile promotes a copy whose job is known only from its record.
func TestPromoteWithoutJobFile(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	r := p.runner(t)
	for _, wrong := range [][]string{{"other", "dst/copy/a"}, {"home", "dst/copy"}, {"home", "dst/gone"}, {"home", "src/a"}} {
		_, err := failover.JobOfCopy(t.Context(), r.Env, wrong[0], wrong[1])
		require.Equal(t, fault.Refused, fault.ClassOf(err), wrong)
	}
	// Another source claims the job: no copy is chosen by its record.
	const at = "dst/copy/a"
	claimed := p.Get("dst/copy/a/c", zfs.OriginProperty)
	p.Set("dst/copy/a/c", zfs.OriginProperty, p.Get(at, zfs.OriginProperty))
	err := failover.RefuseUnnamedIn(t.Context(), r.Env, "home", []string{"src", "dst"})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, `any source can claim job "home"; 2 on this host: dst/copy/a (its source is recorded as "`)
	require.Contains(t, fault.HintOf(err), "promote home dst/copy/a/c")
	require.ErrorContains(t, failover.RefuseUnnamedIn(t.Context(), r.Env, "other", []string{"src", "dst"}), "no dataset of this host is recorded")
	p.Set("dst/copy/a/c", zfs.OriginProperty, claimed)
	j, err := failover.JobOfCopy(t.Context(), r.Env, "home", at)
	require.NoError(t, err)
	f, err := p.Promote(t, j, failover.Options{SourceUnknown: true})
	require.NoError(t, err)
	require.Contains(t, f.Notes[0], "its state is unknown")
	require.Equal(t, "/data", p.Get("dst/copy/a", "mountpoint"))
	require.Equal(t, "on", p.Get("dst/copy/a/c", "canmount"))
	j, err = failover.JobOfCopy(t.Context(), r.Env, "home", "dst/copy/a")
	require.NoError(t, err, "the role names the job after the record was removed")
	f, err = p.Promote(t, j, failover.Options{SourceUnknown: true})
	require.NoError(t, err)
	require.Empty(t, f.Steps)
}

// TestPromoteWithFileOfSource promotes a copy with the job file of the source's host, which names
// this host in the target. A dataset here that has the name of the source is another one.
func TestPromoteWithFileOfSource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	own, err := os.Hostname()
	require.NoError(t, err)
	p.dir = t.TempDir() // this host did not run the job
	for _, name := range []string{own, "root@localhost", "127.0.0.1"} {
		require.NoError(t, os.WriteFile(p.file, []byte(strings.Replace(pairText, `to = "`, `to = "`+name+":", 1)), 0o600))
		f, err := p.doPromote(t, failover.Options{DryRun: true})
		require.NoError(t, err, name)
		require.Contains(t, fmt.Sprint(f.Notes), "its state is unknown")
		require.Contains(t, fmt.Sprint(f.Next), "write into the job file: source = \""+own+":src/a\"")
		_, err = p.doSwitch(t, "home", failover.Options{})
		require.Equal(t, fault.Refused, fault.ClassOf(err), name)
	}
	require.Len(t, p.writable(), 2)
}

// TestSwitchTarget expects that a job with several targets needs the name of one.
func TestSwitchTarget(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("far", nil)
	require.NoError(t, os.WriteFile(p.file, []byte(pairText+"[[job.target]]\nname = \"far\"\nto = \"far/a\"\n"), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.Equal(t, fault.Usage, fault.ClassOf(err))
	require.Contains(t, fault.HintOf(err), "near, far")
	f, err := p.doSwitch(t, "home", failover.Options{Target: "near"})
	require.NoError(t, err)
	require.NotEmpty(t, f.Steps)
	require.Equal(t, []string{"dst/copy/a", "dst/copy/a/c"}, p.writable())
}

// TestSwitchBusySource expects that the source gets its role back if it is in use.
func TestSwitchBusySource(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	p.fail(zfs.OpUnmount, "src/a", &zfs.Error{Kind: zfs.Busy, Op: zfs.OpUnmount, Subject: "src/a"})
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.ErrorContains(t, err, "the source is writable again")
	require.Equal(t, []string{"src/a", "src/a/c"}, p.writable())
	require.Empty(t, p.role(t, "src/a").Kind)
	p.fail("", "", nil)
	require.NoError(t, p.runJob(t, "home"))
}

// TestSwitchWithoutDescendants expects that a switch of a job without recursive = true names the descendants that
// it unmounts, and that an abort mounts them again.
func TestSwitchWithoutDescendants(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, os.WriteFile(p.file, []byte(strings.Replace(pairText, "recursive = true\n", "", 1)), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	around := p.Around
	p.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpSnapshot && strings.Contains(names[0], failover.SnapshotPrefix) {
			return errors.New("killed")
		}
		return around(ctx, op, names, do)
	}
	f, err := p.doSwitch(t, "home", failover.Options{})
	require.Error(t, err)
	require.Contains(t, f.Notes, "the copy does not have src/a/c: it becomes read-only and is unmounted")
	require.Equal(t, []string{"no", "no"}, []string{p.Get("src/a", "mounted"), p.Get("src/a/c", "mounted")})
	_, err = p.doSwitch(t, "home", failover.Options{Abort: true})
	require.NoError(t, err)
	require.Equal(t, []string{"yes", "yes"}, []string{p.Get("src/a", "mounted"), p.Get("src/a/c", "mounted")})
}

// TestSwitchVolume switches a volume there and back.
func TestSwitchVolume(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("src/v", map[string]string{"type": "volume", "readonly": "off"})
	text := strings.NewReplacer("src/a", "src/v", "copy/a", "copy/v", "recursive = true\n", "").Replace(pairText)
	require.NoError(t, os.WriteFile(p.file, []byte(text), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	p.Write("src/v", []byte("one"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"on", "off"}, []string{p.Get("src/v", "readonly"), p.Get("dst/copy/v", "readonly")})
	p.Write("dst/copy/v", []byte("two"))
	_, err = p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"off", "on"}, []string{p.Get("src/v", "readonly"), p.Get("dst/copy/v", "readonly")})
	require.Equal(t, p.names("dst/copy/v"), p.names("src/v"))
}

// TestRelayOfStandby expects that a job that only sends on what arrives still runs when its source
// became a copy in another job.
func TestRelayOfStandby(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Create("far", nil)
	relay := strings.NewReplacer(`"home"`, `"relay"`, "take = \"{job}-%Y%m%dT%H%M%SZ\"", `adopt = ["home-*"]`, "dst/copy/a", "far/a").Replace(pairText)
	require.NoError(t, os.WriteFile(p.file, []byte(pairText+relay), 0o600))
	require.NoError(t, p.runJob(t, "home"))
	require.NoError(t, p.runJob(t, "relay"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.NoError(t, p.runJob(t, "home"))
	require.NoError(t, p.runJob(t, "relay"))
	require.Subset(t, p.names("far/a"), p.names("src/a")[len(p.names("src/a"))-1:])
}

// TestSwitchPaused expects that a pause refuses a switch, but not a promotion.
func TestSwitchPaused(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	all := statedir.All(p.dir)
	require.NoError(t, all.SavePause(&decide.Pause{Since: time.Unix(p.now, 0)}))
	state := p.state()
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "paused until resume")
	require.Contains(t, fault.HintOf(err), "zxfer replicate resume --all")
	require.Equal(t, state, p.state())
	f, err := p.doSwitch(t, "home", failover.Options{DryRun: true})
	require.NoError(t, err, "a plan changes nothing")
	require.NotEmpty(t, f.Steps)
	_, err = p.doPromote(t, failover.Options{SourceAlive: true})
	require.NoError(t, err)
	require.Equal(t, zfs.RoleSource, p.role(t, "dst/copy/a").Kind)
}

// TestSwitchToDisk expects that a copy on a disk that comes and goes does not become the source.
func TestSwitchToDisk(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	require.NoError(t, p.runJob(t, "home"))
	state := p.state()
	f := p.jobs(t)
	j := f.Find("home")
	j.Targets[0].Disk = &replicate.Disk{}
	for _, attempt := range []func() error{
		func() error {
			_, err := p.Switch(t, j, failover.Options{})
			return err
		},
		func() error { _, err := p.Promote(t, j, failover.Options{}); return err },
	} {
		err := attempt()
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.ErrorContains(t, err, "target near is on a disk that comes and goes")
		require.Contains(t, fault.HintOf(err), "zxfer restore dst/copy/a")
	}
	require.Equal(t, state, p.state())
}

// TestSwitchReadOnlyDataset expects that a run after the switch takes snapshots of a dataset that was
// read-only on the source, although the dataset looks like a copy of another job.
func TestSwitchReadOnlyDataset(t *testing.T) {
	t.Parallel()
	p := newRolePair(t)
	p.Set("src/a/c", "readonly", "on")
	require.NoError(t, p.runJob(t, "home"))
	_, err := p.doSwitch(t, "home", failover.Options{})
	require.NoError(t, err)
	require.Equal(t, "on", p.Get("dst/copy/a/c", "readonly"))
	p.Write("dst/copy/a", []byte("two"))
	require.NoError(t, p.runJob(t, "home"))
	require.Equal(t, p.names("dst/copy/a/c"), p.names("src/a/c"))
}
