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

// roleReach is the set of roles that an operation of a restricted key must ask for.
type roleReach int

const (
	noRole    roleReach = iota + 1 // it changes no copy, or no policy permits it
	ownRole                        // it changes one dataset: the roles of it and its ancestors
	treeRoles                      // it moves, destroys or locks descendants too: their roles as well
)

// TestTreeOperationsAskForRolesBelow expects that each operation that could move, destroy or lock a dataset
// that became the source is refused if the dataset, an ancestor or a descendant has that role. Every operation
// must be in the table.
func TestTreeOperationsAskForRolesBelow(t *testing.T) {
	t.Parallel()
	encode := func(v any) string {
		body, err := json.Marshal(v)
		require.NoError(t, err)
		return string(body)
	}
	receive := func(change func(*zfs.ReceiveSpec)) string {
		spec := zfs.ReceiveSpec{Target: "vault/web", Arrival: zfs.Arrival{Base: 1}}
		change(&spec)
		return encode(hosts.Task{From: hosts.Accept{Session: "x"}, To: hosts.ReceiveStream{Spec: spec}})
	}
	name := encode("vault/web")
	table := map[string]struct {
		reach roleReach
		body  string
	}{
		"rename-diverged":      {treeRoles, encode([]zfs.DivergedCopy{{Dataset: "vault/web", GUID: 1, As: "vault/web.zxfer-2026-11-23T10-15-00Z"}})},
		"rename-copies":        {treeRoles, encode([]zfs.RenamedCopy{{Dataset: "vault/web", As: "vault/other", GUID: 1, Base: 2}})},
		"destroy-orphans":      {treeRoles, encode([]zfs.Orphan{{Dataset: "vault/web", GUID: 1, Tag: "zxfer:home:near"}})},
		"inherit-key":          {treeRoles, name},
		"make-encryption-root": {treeRoles, name},
		"destroy":              {ownRole, encode([]string{"vault/web@s"})},
		"release":              {ownRole, encode(hosts.Tagged{Tag: "zxfer:home:near", Snapshots: []string{"vault/web@s"}})},
		"discard-partial":      {ownRole, name},
		"create-parents":       {ownRole, name},
		"transfer":             {ownRole, receive(func(*zfs.ReceiveSpec) {})},
		"apply":                {ownRole, encode(hosts.ChangeList{Changes: []hosts.Change{hosts.OpDestroy.Change([]string{"vault/web@s"})}})},
		"set-properties":       {ownRole, encode(zfs.PropertyChange{Dataset: "vault/web", Set: map[string]string{zfs.OriginProperty: zfs.Origin{}.Encode()}})},
	}
	for _, op := range []string{
		"facts", "host-facts", "list", "dataset-of", "properties", "estimate", "holds", "permitted", "snapshot", "hold", "bookmark", "digest", "offer",
		"read-files", "block-sizes", "capture", "in-use", "mountpoints", "damage", "scrub", "sync", "create-drill-clone", "destroy-drill-clones", // change no copy
		"mount", "revert", // only a restored dataset, and a snapshot of a heal
		"snapshot-frozen", "inspect-device", "device-state", "digest-device", "digest-volume", "measure", "unmount", "rollback",
		"inherit-key-asserted", "find-pools", "import-pool", "export-pool", "run-in-drill-clone", // never permitted
	} {
		table[op] = struct {
			reach roleReach
			body  string
		}{reach: noRole}
	}
	role := zfs.Role{Kind: zfs.RoleSource, ID: strings.Repeat("1", 16), Job: "home", Target: "near", Since: time.Unix(1, 0)}.String()
	admitted := func(op, body, at string, grants ...string) error {
		h := zfsmem.New("vault", "vault/web", "vault/web/a/fs")
		h.Create("vault/web/vol", map[string]string{"type": "volume"})
		if op == "inherit-key" {
			h.Set("vault/web", "keystatus", "unavailable")
			h.Set("vault/web", "keylocation", "prompt")
		}
		if at != "" {
			h.Set(at, zfs.RoleProperty, role)
		}
		p, err := Parse(append([]string{"receive=vault", "rotate=vault", "follow=vault", "remove=vault"}, grants...), nil, false)
		require.NoError(t, err)
		_, err = NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {}).Admit(t.Context(), Request{Op: op, Body: json.RawMessage(body)})
		return err
	}
	for _, op := range hosts.Operations() {
		c, known := table[op.Name()]
		require.True(t, known, "%s: say in this table which roles the operation asks for", op.Name())
		delete(table, op.Name())
		if c.reach == noRole {
			continue
		}
		require.NoError(t, admitted(op.Name(), c.body, ""), op.Name())
		for at, refused := range map[string]bool{"vault/web": true, "vault": true, "vault/web/a/fs": c.reach == treeRoles, "vault/web/vol": c.reach == treeRoles} {
			err := admitted(op.Name(), c.body, at)
			if !refused {
				require.NoError(t, err, "%s, role of %s", op.Name(), at)
				continue
			}
			require.ErrorContains(t, err, at+" became the source", "%s, role of %s", op.Name(), at)
		}
	}
	require.Empty(t, table)
}

// TestAccessPropertiesAskForRolesBelow expects that a restricted key cannot change an access property that a dataset
// that became the source inherits.
func TestAccessPropertiesAskForRolesBelow(t *testing.T) {
	t.Parallel()
	role := zfs.Role{Kind: zfs.RoleSource, ID: strings.Repeat("1", 16), Job: "home", Target: "near", Since: time.Unix(1, 0)}.String()
	for at, refused := range map[string]bool{"": false, "vault": true, "vault/web": true, "vault/web/a": true} {
		h := zfsmem.New("vault", "vault/web", "vault/web/a")
		h.Set("vault/web", "readonly", "on")
		if at != "" {
			h.Set(at, zfs.RoleProperty, role)
		}
		body, err := json.Marshal(zfs.PropertyChange{Dataset: "vault/web", Set: map[string]string{"acltype": "off"}})
		require.NoError(t, err)
		_, err = admit(t, NewGuard(&Policy{Receive: []string{"vault"}, AppendOnly: true}, hosts.On(h, "test", func(string) {}), func(string) {}), "set-properties", string(body))
		if !refused {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, at+" became the source")
	}
}

// TestReceiveKeepsKeyOfSourceBelow expects that a stream cannot bring another key to the encryption root of a
// dataset that became the source, because nobody could open that dataset any more.
func TestReceiveKeepsKeyOfSourceBelow(t *testing.T) {
	t.Parallel()
	role := zfs.Role{Kind: zfs.RoleSource, ID: strings.Repeat("1", 16), Job: "home", Target: "near", Since: time.Unix(1, 0)}.String()
	for at, keep := range map[string]bool{"": false, "vault/web/a/fs": true, "vault/web/vol": true} {
		h := zfsmem.New("vault/web/a/fs")
		h.Create("vault/web/vol", map[string]string{"type": "volume"})
		h.Set("vault/web", "encryptionroot", "vault/web")
		if at != "" {
			h.Set(at, zfs.RoleProperty, role)
		}
		spec := zfs.ReceiveSpec{Target: "vault/web", Arrival: zfs.Arrival{Base: 1, Raw: true}}
		g := NewGuard(&Policy{Receive: []string{"vault"}}, hosts.On(h, "test", func(string) {}), func(string) {})
		require.NoError(t, g.checkReceive(t.Context(), &spec))
		require.Equal(t, keep, spec.KeepKey, at)
	}
}
