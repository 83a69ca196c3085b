package authz

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// someChanges returns changes of datasets with each operation of a list.
func someChanges(datasets ...string) (all []hosts.Change) {
	for _, d := range datasets {
		snapshots := []string{d + "@s"}
		all = append(all, hosts.OpSnapshot.Change([]string{d + "@new"}), hosts.OpBookmark.Change(map[string]string{d + "#s": d + "@s"}),
			hosts.OpHold.Change(hosts.Tagged{Tag: "t", Snapshots: snapshots}), hosts.OpHold.Change(hosts.Tagged{Snapshots: snapshots}),
			hosts.OpRelease.Change(hosts.Tagged{Tag: "legal", Snapshots: snapshots}), hosts.OpRelease.Change(hosts.Tagged{Tag: "zxfer:j:t", Snapshots: snapshots}),
			hosts.OpDestroy.Change(snapshots), hosts.OpDestroy.Change([]string{d}), hosts.OpSync.Change(d),
			hosts.OpSetProperties.Change(zfs.PropertyChange{Dataset: d, Set: map[string]string{"mountpoint": "/etc"}}),
			hosts.OpSetProperties.Change(zfs.PropertyChange{Dataset: d, Set: map[string]string{zfs.OriginProperty: zfs.Origin{}.Encode()}}))
	}
	return all
}

// TestListIsJudgedLikeItsChanges expects a restricted key to get for a list what it gets for each change as a
// request of its own: the same refusal and the same lines of the audit. If one change is refused, none is
// admitted.
func TestListIsJudgedLikeItsChanges(t *testing.T) {
	t.Parallel()
	all := someChanges("vault/web", "vault/other", "tank/vm", "tank")
	admitted, refused := 0, 0
	for _, grants := range [][]string{{"receive=vault/web"}, {"receive-rekey=vault"}, {"send=tank/vm"}, {"restore=vault/web"}, {"receive=vault", "send=tank"}} {
		for _, appendOnly := range []bool{false, true} {
			for _, role := range []string{"", zfs.Role{Kind: zfs.RoleSource, ID: strings.Repeat("1", 16), Job: "home", Target: "near", Since: time.Unix(1, 0)}.String()} {
				p, err := Parse(grants, nil, appendOnly)
				require.NoError(t, err)
				h := zfsmem.New("vault/web", "vault/other", "tank/vm")
				if role != "" {
					h.Set("vault/web", zfs.RoleProperty, role)
				}
				judge := func(op string, args any) (lines []string, err error) {
					body, err := json.Marshal(args)
					require.NoError(t, err)
					_, err = NewGuard(p, hosts.On(h, "test", func(string) {}), func(l string) { lines = append(lines, l) }).
						Admit(t.Context(), Request{Op: op, Body: body})
					return lines, err
				}
				list := func(changes ...hosts.Change) ([]string, error) {
					return judge(hosts.OpApply.Name(), hosts.ChangeList{Changes: changes})
				}
				var permitted []hosts.Change
				var want []string
				for _, c := range all {
					lines, err := judge(c.Op.Name(), c.Args)
					inList, listErr := list(c)
					require.Equal(t, lines, inList, "%v: %s %v", grants, c.Op.Name(), c.Args)
					if err == nil {
						require.NoError(t, listErr)
						permitted, want = append(permitted, c), append(want, lines...)
						continue
					}
					require.EqualError(t, listErr, err.Error())
					require.Equal(t, fault.Refused, fault.ClassOf(listErr))
					require.Equal(t, fault.HintOf(err), fault.HintOf(listErr))
					after, err := list(append(permitted[:len(permitted):len(permitted)], c)...)
					require.Error(t, err)
					require.Equal(t, lines, after, "no change of the list is admitted")
					refused++
				}
				lines, err := list(permitted...)
				require.NoError(t, err)
				require.Equal(t, want, lines)
				admitted += len(permitted)
			}
		}
	}
	require.Greater(t, admitted, 50)
	require.Greater(t, refused, 500)
}

// TestQueryAfterChangesIsJudged expects the query of a list to have the rule of a listing.
func TestQueryAfterChangesIsJudged(t *testing.T) {
	t.Parallel()
	var lines []string
	g := NewGuard(&Policy{Send: []string{"tank/vm"}}, hosts.On(zfsmem.New("tank/vm"), "test", func(string) {}), func(l string) { lines = append(lines, l) })
	_, err := admit(t, g, "apply", `{"changes":[{"op":"snapshot","args":["tank/vm@x"]}],"list":{"dataset":"tank"}}`)
	require.ErrorContains(t, err, "--allow send=tank")
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], `refused "list"`)
	lines = nil
	args, err := admit(t, g, "apply", `{"changes":[{"op":"snapshot","args":["tank/vm@x"]}],"list":{"dataset":"tank/vm"}}`)
	require.NoError(t, err)
	require.True(t, args.(hosts.ChangeList).List.Brief, "a key sees ancestors as briefly as in a listing")
	require.Equal(t, []string{`admitted snapshot: "tank/vm@x"`}, lines)
}

// TestAuditOfStoppedList expects the audit to name the change that failed, and those that did not start.
func TestAuditOfStoppedList(t *testing.T) {
	t.Parallel()
	var lines []string
	g := NewGuard(&Policy{Send: []string{"tank/vm"}}, hosts.On(zfsmem.New("tank/vm"), "test", func(string) {}), func(l string) { lines = append(lines, l) })
	q := Request{Op: "apply", Body: []byte(`{"changes":[{"op":"sync","args":"tank/vm"},{"op":"snapshot","args":["tank/vm@a"]},
		{"op":"hold","args":{"tag":"t","snapshots":["tank/vm@b"]}},{"op":"destroy","args":["tank/vm@c"]}]}`)}
	args, err := g.Admit(t.Context(), q)
	require.NoError(t, err)
	for done, want := range [][]string{
		{`not started snapshot: an earlier change failed: "tank/vm@a"`, `not started hold: an earlier change failed: "tank/vm@b"`, `not started destroy: an earlier change failed: "tank/vm@c"`},
		{`failed snapshot: busy: "tank/vm@a"`, `not started hold: an earlier change failed: "tank/vm@b"`, `not started destroy: an earlier change failed: "tank/vm@c"`},
		{`failed hold: busy: "tank/vm@b"`, `not started destroy: an earlier change failed: "tank/vm@c"`},
		{`failed destroy: busy: "tank/vm@c"`}, {}, {},
	} {
		lines = []string{}
		g.LogFailed(q, args, &hosts.StoppedError{Done: done, Err: errors.New("busy")})
		require.Equal(t, want, lines, done)
	}
}
