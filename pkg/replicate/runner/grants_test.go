package runner

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// guardedReplica is a replica that serves a restricted key.
type guardedReplica struct {
	*replica
	policy *authz.Policy
}

func (k guardedReplica) Open(ctx context.Context, l hosts.Address) (hosts.Host, error) {
	st, err := k.replica.Open(ctx, l)
	c := st.(captured)
	c.Restrict(k.policy.Flags())
	return guardedHost{c, authz.NewGuard(k.policy, c.Local, func(string) {})}, err
}

type guardedHost struct {
	captured
	guard *authz.Guard
}

func (h guardedHost) Run(ctx context.Context, r *hosts.Request) error {
	body, err := json.Marshal(r.Args)
	if err != nil {
		return err
	}
	if r.Args, err = h.guard.Admit(ctx, authz.Request{Op: r.Op.Name(), Body: body}); err != nil {
		return err
	}
	return h.captured.Run(ctx, r)
}

// TestCheckKnowsGrants expects that a preview compares the grants of the key with everything that the job
// will need, and names the missing ones. A job once passed it, and failed 36 hours later.
func TestCheckKnowsGrants(t *testing.T) {
	t.Parallel()
	full := "--allow send=src --allow receive=dst/copy "
	for name, c := range map[string]struct {
		flags  string
		change func(*replicate.Job)
		want   []string // "target key: hint"
	}{
		"complete":    {flags: full},
		"append-only": {flags: full + "--append-only", want: []string{"source retention: omit --append-only", "source bookmarks: omit --append-only", "t retention: omit --append-only"}},
		"append-only without retention": {flags: full + "--append-only", change: func(j *replicate.Job) {
			j.Retention, j.Targets[0].Retention, j.Bookmarks = nil, nil, "none"
		}},
		"features of the target": {flags: full, change: func(j *replicate.Job) {
			j.Targets[0].OnDivergence, j.Targets[0].OnRename, j.Targets[0].Retention = "rotate", "follow", nil
			j.Targets[0].Mirror, j.Targets[0].Drill = &replicate.Mirror{Gone: calendar.Grace(90 * 24 * time.Hour)}, &replicate.Drill{}
		}, want: []string{`t on_divergence = "rotate": add --allow rotate=dst/copy`, `t on_rename = "follow": add --allow follow=dst/copy`,
			"t mirror.gone: add --allow remove=dst/copy", "t drill: add --allow drill=dst/copy"}},
		"features with grants": {flags: full + "--allow rotate=dst/copy --allow follow=dst --allow remove=dst --allow drill=dst", change: func(j *replicate.Job) {
			j.Targets[0].OnDivergence, j.Targets[0].OnRename, j.Targets[0].Retention = "rotate", "follow", nil
			j.Targets[0].Mirror, j.Targets[0].Drill = &replicate.Mirror{Gone: calendar.Grace(90 * 24 * time.Hour)}, &replicate.Drill{}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Retention: &retention.Grid{Last: 1}, Bookmarks: "common", Holds: "both"})
			if c.change != nil {
				c.change(r.job)
			}
			p, err := authz.ParseFlags(strings.Fields(c.flags))
			require.NoError(t, err)
			preview, err := New(r.dir, guardedReplica{r, p}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Preview(t.Context(), r.job)
			require.NoError(t, err)
			var got, commands []string
			for _, d := range preview.Denied {
				if d.Command {
					require.True(t, d.Harmless)
					commands = append(commands, d.Target+" "+d.Key)
					continue
				}
				hint, _, _ := strings.Cut(strings.TrimPrefix(d.Hint, "in authorized_keys on local: "), ";")
				got = append(got, d.Target+" "+d.Key+": "+hint)
				require.Equal(t, d.Key == "bookmarks", d.Harmless)
				require.Contains(t, d.Hint, "the key has: --allow receive=dst/copy --allow send=src", "the grants that the key has")
			}
			require.ElementsMatch(t, c.want, got)
			require.ElementsMatch(t, []string{"source zxfer heal", "source zxfer restore", "source zxfer replicate switch",
				"t zxfer heal", "t zxfer restore", "t zxfer replicate switch"}, commands)
			if len(c.want) > 0 {
				require.ErrorContains(t, preview.Err(), "would")
			}
		})
	}
}

// TestCheckNamesCommandsOfKey expects that a preview names the grants that heal and restore need, and says that
// no grant permits a change of roles. The printed grants permit what the commands ask for.
func TestCheckNamesCommandsOfKey(t *testing.T) {
	t.Parallel()
	const jobOnly = "--allow send=src --allow receive=dst/copy"
	commands := func(flags string) map[string]string {
		r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
		r.job.Targets[0].Retention = nil
		p, err := authz.ParseFlags(strings.Fields(flags))
		require.NoError(t, err)
		preview, err := New(r.dir, guardedReplica{r, p}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Preview(t.Context(), r.job)
		require.NoError(t, err)
		require.NoError(t, preview.Err(), "no run needs the commands")
		out := map[string]string{}
		for _, d := range preview.Denied {
			out[d.Target+" "+d.Key] = strings.TrimPrefix(strings.Split(d.Hint, ";")[0], "in authorized_keys on local: ")
		}
		return out
	}
	roles := map[string]string{"source zxfer replicate switch": "use a key that is not restricted", "t zxfer replicate switch": "use a key that is not restricted"}
	want := map[string]string{"source zxfer heal": "add --allow heal=src", "source zxfer restore": "add --allow restore=src",
		"t zxfer heal": "add --allow heal=dst/copy", "t zxfer restore": "add --allow send=dst/copy"}
	flags := jobOnly
	for _, change := range want {
		flags += strings.TrimPrefix(change, "add")
	}
	maps.Copy(want, roles)
	require.Equal(t, want, commands(jobOnly))
	require.Equal(t, roles, commands(flags))

	// The most that a key can have does not permit a role.
	for _, g := range authz.AllGrants() {
		flags += " --allow " + g.Verb + "=dst"
	}
	p, err := authz.ParseFlags(strings.Fields(flags))
	require.NoError(t, err)
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	h, err := guardedReplica{r, p}.Open(t.Context(), hosts.Address{})
	require.NoError(t, err)
	err = hosts.Run(t.Context(), h, hosts.OpSetProperties, zfs.PropertyChange{Dataset: "dst/copy", Set: map[string]string{zfs.RoleProperty: "x"}})
	require.ErrorContains(t, err, authz.NoRoleChange)
}

// TestStatusWithoutHealGrant expects that a healthy job whose key has no heal= grant reports nothing about
// data errors. Each status once called them unknown.
func TestStatusWithoutHealGrant(t *testing.T) {
	t.Parallel()
	for _, grant := range []string{"", " --allow heal=src --allow heal=dst/copy"} {
		r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
		r.job.Targets[0].Retention = nil
		p, err := authz.ParseFlags(strings.Fields("--allow send=src --allow receive=dst/copy" + grant))
		require.NoError(t, err)
		run, err := New(r.dir, guardedReplica{r, p}, func() time.Time { return time.Unix(r.now, 0) }, func(s string) { t.Log(s) }).Run(t.Context(), r.job, true)
		require.NoError(t, err)
		require.Equal(t, outcome.Done, run.Outcome, run.Error)
		st := r.status(t)
		require.Equal(t, grant != "", len(st.Pools) == 2)
		for _, pool := range st.Pools {
			require.Equal(t, status.OK, pool.State, pool.Unknown)
		}
	}
}
