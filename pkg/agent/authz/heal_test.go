package authz

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestHealGrant expects that a heal grant permits listing damage and healing through zxfer's
// snapshots. Append-only receive keys do not permit this.
func TestHealGrant(t *testing.T) {
	t.Parallel()
	guard := func(grants ...string) *Guard {
		p, err := Parse(grants, nil, true)
		require.NoError(t, err)
		return NewGuard(p, hosts.On(zfsmem.New("vault/a/b"), "test", func(string) {}), func(string) {})
	}
	corrective := func(target string, bend func(*zfs.ReceiveSpec)) *hosts.Task {
		r := zfs.ReceiveSpec{Target: target, Corrective: true, Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "zxfer-heal-x", GUID: 1}}}}
		if bend != nil {
			bend(&r)
		}
		return &hosts.Task{From: hosts.Accept{Session: "s"}, To: hosts.ReceiveStream{Spec: r}}
	}
	own, dataset := []string{"vault/a/b@zxfer-heal-x"}, "vault/a"
	ctx := t.Context()
	healer := guard("heal=vault/a")
	require.NoError(t, mayDamage(ctx, healer, &dataset))
	require.ErrorIs(t, mayDamage(ctx, guard("receive=vault/a"), &dataset), errHostFacts, "not logged in every run")
	require.NoError(t, mayScrub(ctx, healer, &dataset))
	require.NoError(t, mayTransfer(ctx, healer, corrective("vault/a/b", nil)))
	// A key that permits the whole stream permits some of its blocks.
	only := zfs.Blocks{{Object: 1, First: 2, Count: 3}}
	blocks := corrective("vault/a/b", func(r *zfs.ReceiveSpec) { r.Only = only })
	require.NoError(t, mayTransfer(ctx, healer, blocks))
	require.Empty(t, uncheckedField(reflect.ValueOf(blocks)))
	for _, of := range []string{"vault/a", "vault/c"} {
		send := &hosts.Task{From: hosts.SendStream{Spec: zfs.SendSpec{Dataset: of, To: "x", Flags: zfs.StreamFlags{Raw: true}}, Only: only}, To: hosts.Accept{Session: "s"}}
		require.Empty(t, uncheckedField(reflect.ValueOf(send)))
		err := mayTransfer(ctx, guard("heal=vault/a", "send=vault/a"), send)
		require.Equal(t, of == "vault/a", err == nil, err)
		require.Error(t, mayTransfer(ctx, healer, send), "heal= alone does not send")
	}
	require.NoError(t, maySnapshot(ctx, healer, &own))
	require.NoError(t, mayDestroy(ctx, healer, &own))
	base, other := "vault/a/b@daily", "vault/c@daily"
	require.NoError(t, mayRevert(ctx, healer, &base))
	require.Error(t, mayRevert(ctx, healer, &other))
	require.NoError(t, mayList(ctx, healer, &hosts.ListQuery{Dataset: dataset}))
	require.NoError(t, maySync(ctx, healer, &dataset))
	require.NoError(t, maySync(ctx, guard("receive=vault/a"), &dataset))
	require.Error(t, maySync(ctx, guard("receive=vault/c"), &dataset))

	for name, err := range map[string]error{
		"other":                 mayTransfer(ctx, healer, corrective("vault/ab", nil)),
		"rollback":              mayTransfer(ctx, healer, corrective("vault/a", func(r *zfs.ReceiveSpec) { r.Rollback = true })),
		"origin":                mayTransfer(ctx, healer, corrective("vault/a", func(r *zfs.ReceiveSpec) { r.Origin = "vault/a@x" })),
		"properties":            mayTransfer(ctx, healer, corrective("vault/a", func(r *zfs.ReceiveSpec) { r.Set = map[string]string{"readonly": "on"} })),
		"plain":                 mayTransfer(ctx, healer, corrective("vault/a", func(r *zfs.ReceiveSpec) { r.Corrective = false })),
		"send":                  mayEstimate(ctx, healer, &[]zfs.SendSpec{{Dataset: dataset, To: "x", Flags: zfs.StreamFlags{Raw: true}}}),
		"snapshot":              maySnapshot(ctx, healer, &[]string{"vault/a@mine"}),
		"destroy":               mayDestroy(ctx, healer, &[]string{"vault/a@daily"}),
		"other after permitted": mayDestroy(ctx, healer, &[]string{"vault/a/b@zxfer-heal-x", "vault/a@daily"}),
		"elsewhere":             mayDestroy(ctx, healer, &[]string{"vault/c@zxfer-heal-x"}),
	} {
		require.Error(t, err, name)
	}
	pool := "vault"
	require.Error(t, mayDamage(ctx, healer, &pool), "damage of the whole pool")

	receiver := guard("receive=vault/a")
	require.Error(t, mayDamage(ctx, receiver, &dataset))
	require.Error(t, mayScrub(ctx, receiver, &dataset))
	require.Error(t, mayTransfer(ctx, receiver, corrective("vault/a", nil)))
	require.Error(t, mayDestroy(ctx, receiver, &own))
	require.Error(t, mayRevert(ctx, receiver, &base))
}
