package authz

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestPromotedCopyIsNotChanged expects that a key with all grants for copies cannot change a copy
// that became the source, whatever it claims, and that no key can change a role.
func TestPromotedCopyIsNotChanged(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("vault/web", "vault/web/a", "vault/standby", "vault/plain", "tank/x")
	role := zfs.Role{Kind: zfs.RoleSource, ID: strings.Repeat("1", 16), Job: "home", Target: "near", Since: time.Unix(1, 0)}
	standby := role
	standby.Kind = zfs.RoleStandby
	h.Set("vault/web", zfs.RoleProperty, role.String())
	h.Set("vault/standby", zfs.RoleProperty, standby.String())
	h.Edit(func(all map[string]*zfs.Dataset) {
		all["vault/plain"].Properties[zfs.RoleProperty] = zfs.Property{Value: role.String(), Source: "received"}
	})
	p, err := Parse([]string{"receive=vault", "rotate=vault/web", "remove=vault/web", "follow=vault", "send=tank"}, nil, false)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
	encode := func(v any) string {
		body, err := json.Marshal(v)
		require.NoError(t, err)
		return string(body)
	}
	stream := func(target string, base uint64) string {
		return encode(hosts.Task{From: hosts.Accept{Session: "x"}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{Target: target, Arrival: zfs.Arrival{Base: base}}}})
	}
	set := func(dataset, property, value string) string {
		return encode(zfs.PropertyChange{Dataset: dataset, Set: map[string]string{property: value}})
	}
	origin := zfs.Origin{Set: map[string]string{"mountpoint": "/data"}}.Encode()
	for _, c := range []struct {
		op, body string
		allowed  bool
	}{
		{"transfer", stream("vault/web", 1), false},
		{"transfer", stream("vault/web", 0), false},
		{"transfer", stream("vault/web/a", 1), false},
		{"transfer", stream("vault/web/new", 0), false},
		{"transfer", stream("vault/standby", 1), true},
		{"transfer", stream("vault/plain", 1), true},
		{"destroy", `["vault/web@s"]`, false},
		{"destroy", `["vault/web/a@s"]`, false},
		{"destroy", `["vault/standby@s"]`, true},
		{"rename-copies", encode([]zfs.RenamedCopy{{Dataset: "vault/web/a", As: "vault/web/b", GUID: 7, Base: 8}}), false},
		{"rename-copies", encode([]zfs.RenamedCopy{{Dataset: "vault/plain", As: "vault/web/b", GUID: 7, Base: 8}}), false},
		{"rename-copies", encode([]zfs.RenamedCopy{{Dataset: "vault/plain", As: "vault/other", GUID: 7, Base: 8}}), true},
		{"discard-partial", `"vault/web/a"`, false},
		{"discard-partial", `"vault/standby"`, true},
		{"create-parents", `"vault/web/new/x"`, false},
		{"make-encryption-root", `"vault/web"`, false},
		{"inherit-key", `"vault/web"`, false},
		{"release", `{"tag":"zxfer:home:near","snapshots":["vault/web@s"]}`, false},
		{"release", `{"tag":"zxfer:home:near","snapshots":["vault/standby@s"]}`, true},
		{"rename-diverged", encode([]zfs.DivergedCopy{{Dataset: "vault/web", GUID: 1, As: "vault/web.zxfer-2026-11-23T10-15-00Z"}}), false},
		{"set-properties", set("vault/plain", zfs.OriginProperty, origin), true},
		{"set-properties", set("vault/web", zfs.OriginProperty, origin), false},
		{"set-properties", set("tank/x", zfs.OriginProperty, origin), false},
		{"set-properties", set("vault/plain", zfs.OriginProperty, `{"set":{"sharenfs":"on"}}`), false},
		{"set-properties", set("vault/plain", zfs.RoleProperty, role.String()), false},
		{"set-properties", set("tank/x", zfs.RoleProperty, role.String()), false},
		{"set-properties", `{"dataset":"vault/web","revert":["zxfer:role"]}`, false},
		{"set-properties", `{"dataset":"vault/web"}`, false},
	} {
		_, err := g.Admit(t.Context(), Request{Op: c.op, Body: json.RawMessage(c.body)})
		require.Equal(t, c.allowed, err == nil, "%s %s: %v", c.op, c.body, err)
	}
}

// emptyVault returns a host with the pool vault.
func emptyVault() Host { return hosts.On(zfsmem.New("vault"), "test", func(string) {}) }
