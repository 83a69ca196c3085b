package authz

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestRestoreGrant expects that a restore grant only permits undoing the precautions on restored
// datasets. A receive grant does not permit it.
func TestRestoreGrant(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("tank/a", "tank/b", "tank/back", "tank/back/below", "vault/web", "other")
	h.Set("tank/back", zfs.RestoreProperty, "on")
	h.Set("vault/web", zfs.RestoreProperty, "on")
	h.Create("tank/done", map[string]string{zfs.CanMountProperty: "on"})
	for name, status := range map[string]string{"vault/copy": "unavailable", "vault/open": "available", "vault/known": "unavailable", "other/copy": "unavailable"} {
		h.Create(name, map[string]string{"keystatus": status, "keylocation": "prompt"})
	}
	h.Set("vault/known", "keylocation", "file:///k")
	h.Set("vault/copy", "readonly", "on")
	h.Edit(func(all map[string]*zfs.Dataset) {
		all["tank/back/below"].Properties[zfs.RestoreProperty] = zfs.Property{Value: "on", Source: "inherited from tank/back"}
	})
	host := hosts.On(h, "test", func(string) {})
	p, err := Parse([]string{"restore=tank", "receive=vault"}, nil, true)
	require.NoError(t, err)
	require.Equal(t, "--allow receive=vault --allow restore=tank --append-only", p.String())
	g := NewGuard(p, host, func(string) {})
	adjust := func(dataset, property, value string) string {
		body, err := json.Marshal(zfs.PropertyChange{Dataset: dataset, Set: map[string]string{property: value}})
		require.NoError(t, err)
		return string(body)
	}
	stream := func(target string, base uint64, property, value string) string {
		body, err := json.Marshal(hosts.Task{From: hosts.Accept{Session: "x"}, To: hosts.ReceiveStream{Spec: zfs.ReceiveSpec{
			Target: target, Set: map[string]string{property: value}, Arrival: zfs.Arrival{Base: base},
		}}})
		require.NoError(t, err)
		return string(body)
	}
	for _, c := range []struct {
		op, body string
		allowed  bool
	}{
		{"set-properties", adjust("tank/back", "readonly", "off"), true},
		{"set-properties", `{"dataset":"tank/back","revert":["readonly","zxfer:stream","zxfer:restore"]}`, true},
		{"set-properties", `{"dataset":"tank/back","revert":["canmount"]}`, false},
		{"set-properties", adjust("tank/back", "canmount", "on"), false},
		{"set-properties", adjust("tank/back", zfs.CanMountProperty, "on"), true},
		{"set-properties", adjust("tank/a", zfs.CanMountProperty, "on"), false},
		{"set-properties", adjust("tank/back", "canmount", "off"), true},
		{"set-properties", adjust("tank/back", "mountpoint", "/etc"), false},
		{"set-properties", adjust("tank/back", "readonly", "x"), false},
		{"set-properties", `{"dataset":"tank/back","revert":["quota"]}`, false},
		{"set-properties", adjust("tank/a", "readonly", "off"), false},
		{"set-properties", adjust("tank/back/below", "readonly", "off"), false},
		{"set-properties", adjust("tank/gone", "readonly", "off"), false},
		{"set-properties", adjust("vault/web", "readonly", "off"), false},
		{"set-properties", adjust("tank/back", "acltype", "posix"), true},
		{"set-properties", adjust("tank/a", "acltype", "off"), false}, // a live dataset
		{"set-properties", adjust("vault/copy", "acltype", "posix"), true},
		{"set-properties", adjust("vault/copy", "setuid", "off"), true},
		{"set-properties", adjust("vault/copy", "setuid", "on"), false},
		{"set-properties", adjust("vault/copy", "quota", "1"), false},
		{"set-properties", adjust("vault/copy", "zxfer:settings", `{"quota":"5"}`), true},
		{"set-properties", adjust("vault/copy", "zxfer:settings", `{"quota":"x"}`), false},
		{"set-properties", adjust("vault/copy", "zxfer:role", "x"), false},
		{"set-properties", adjust("vault/web", "acltype", "off"), false}, // not read-only
		{"set-properties", adjust("other/copy", "acltype", "off"), false},
		{"transfer", stream("tank/a", 0, "acltype", "off"), false},
		{"transfer", stream("tank/a", 7, "acltype", "off"), false},
		{"transfer", stream("vault/web", 7, "acltype", "off"), false},
		{"transfer", stream("vault/new", 0, "acltype", "posix"), true},
		{"mount", `{"dataset":"tank/back","at":"/srv","boot":true}`, true},
		{"mount", `{"dataset":"tank/back","over":true}`, false},
		{"mount", `{"dataset":"tank/back","trusted":true}`, false},
		{"mount", `{"dataset":"tank/done"}`, true},
		{"mountpoints", `{}`, false},
		{"mount", `{"dataset":"tank/a"}`, false},
		{"mount", `{"dataset":"vault/web"}`, false},
		{"inherit-key", `"tank/back"`, true},
		{"inherit-key", `"tank/a"`, false},
		{"inherit-key", `"vault/copy"`, true},
		{"inherit-key", `"vault/open"`, false},
		{"inherit-key", `"vault/known"`, false},
		{"inherit-key", `"other/copy"`, false},
		{"make-encryption-root", `"vault/copy"`, false},
		{"make-encryption-root", `"tank/a"`, false},
		{"transfer", stream("tank/new", 0, zfs.RestoreProperty, "on"), true},
		{"transfer", stream("tank/new", 0, "atime", "off"), true},
		{"transfer", stream("tank/new", 0, "org.example:note", "x"), false},
		{"transfer", stream("tank/new", 0, "org.example:note", "x\ntank/new\t/root/.ssh\ton"), false},
		{"transfer", stream("tank/new", 0, "setuid", "on"), false},
		{"transfer", stream("tank/new", 0, "setuid", "off"), true},
		{"transfer", stream("tank/new", 0, "org.openzfs.systemd:ignore", "off"), false},
		{"transfer", stream("tank/new", 0, "mountpoint", "/etc"), false},
		{"transfer", stream("tank/new", 0, "sharenfs", "on"), false},
		{"transfer", stream("tank/new", 0, "keylocation", "https://evil"), false},
		{"transfer", stream("tank/new", 0, "readonly", "off"), false},
		{"transfer", stream("tank/new", 0, "checksum", "off"), false},
		{"transfer", stream("tank/a", 7, zfs.RestoreProperty, "on"), false},
		{"transfer", stream("tank/a", 7, "atime", "off"), false},
		{"transfer", stream("vault/new", 0, zfs.RestoreProperty, "on"), false},
		{"transfer", stream("vault/new", 0, "atime", "off"), false},
	} {
		_, err := admit(t, g, c.op, c.body)
		if c.allowed {
			require.NoError(t, err, "%s %s", c.op, c.body)
		} else {
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%s %s", c.op, c.body)
		}
	}
}

// TestRestoreGrantDestroysNothing expects that a restore grant never destroys data of the original,
// even without --append-only.
func TestRestoreGrantDestroysNothing(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("tank/home", "vault/web", "pool/src")
	p, err := Parse([]string{"restore=tank/home", "receive=vault", "send=pool/src"}, nil, false)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
	for _, c := range []struct {
		op, body string
		allowed  bool
	}{
		{"destroy", `["tank/home@a"]`, false},
		{"destroy", `["vault/web@a", "tank/home@a"]`, false},
		{"destroy", `["vault/web@a", "pool/src@a"]`, true},
		{"release", `{"tag":"mine","snapshots":["tank/home@a"]}`, false},
		{"release", `{"tag":"mine","snapshots":["vault/web@a","tank/home@a"]}`, false},
		{"release", `{"tag":"zxfer:job","snapshots":["tank/home@a"]}`, true},
		{"release", `{"tag":"mine","snapshots":["vault/web@a"]}`, true},
	} {
		_, err := admit(t, g, c.op, c.body)
		if c.allowed {
			require.NoError(t, err, "%s %s", c.op, c.body)
		} else {
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%s %s", c.op, c.body)
		}
	}
	for target, keeps := range map[string]bool{"tank/home": true, "vault/web": false} {
		spec := zfs.ReceiveSpec{Target: target, Arrival: zfs.Arrival{Base: 7}}
		require.NoError(t, g.checkReceive(t.Context(), &spec))
		require.Equal(t, keeps, spec.KeepKey, target)
	}
}

// TestRestoreGrantKeepsExistingDataset expects that a stream into a complete dataset sets no restore
// properties, even if the request claims another origin. The rest of a first stream sets them.
func TestRestoreGrantKeepsExistingDataset(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("tank/live", "tank/half")
	h.Set("tank/half", "inconsistent", "1")
	p, err := Parse([]string{"restore=tank"}, nil, false)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
	for target, allowed := range map[string]bool{"tank/live": false, "tank/half": true, "tank/new": true} {
		for _, base := range []uint64{0, 7} {
			spec := zfs.ReceiveSpec{Target: target, Origin: "tank/other@x", Set: map[string]string{zfs.RestoreProperty: "on"}, Arrival: zfs.Arrival{Base: base}}
			err := g.checkReceive(t.Context(), &spec)
			require.Equal(t, allowed, err == nil, "%s: %v", target, err)
		}
	}
}

// full is a host whose directories contain files, except one.
type full struct {
	*hosts.Local
	empty string
}

func (f full) InUse(_ context.Context, paths []string) (map[string]string, error) {
	found := map[string]string{}
	for _, p := range paths {
		if p != f.empty {
			found[p] = "is not empty (secret)"
		}
	}
	return found, nil
}

func TestRestoreGrantMountsOnlyFreeMountpoint(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("tank/back")
	h.Set("tank/back", zfs.RestoreProperty, "on")
	h.Set("tank/back", "mountpoint", "/home")
	p, err := Parse([]string{"restore=tank"}, nil, false)
	require.NoError(t, err)
	g := NewGuard(p, full{hosts.On(h, "test", func(string) {}), "/srv"}, func(string) {})
	_, err = admit(t, g, "mount", `{"dataset":"tank/back"}`)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.NotContains(t, err.Error(), "secret")
	for _, path := range []string{"/srv", "legacy", "none"} {
		h.Set("tank/back", "mountpoint", path)
		_, err = admit(t, g, "mount", `{"dataset":"tank/back"}`)
		require.NoError(t, err, path)
	}
	h.Create("tank/locked", map[string]string{"mountpoint": "/srv", "canmount": "on", "keystatus": "unavailable"})
	h.Set("tank/back", "mountpoint", "/srv")
	_, err = admit(t, g, "mount", `{"dataset":"tank/back"}`)
	require.ErrorContains(t, err, "or of another dataset", "it is mounted there later")
	h.Set("tank/back", "mountpoint", "/home")
	h.Set("tank/back", "mounted", "yes")
	_, err = admit(t, g, "mount", `{"dataset":"tank/back"}`)
	require.NoError(t, err)
}
