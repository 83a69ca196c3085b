package plan

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// restored plans to restore tank/h and its descendants from vault/h. Each
// dataset has a snapshot and, if encrypted, its own key with a salt.
func restored(salts map[string]string, above map[string]string) Plan {
	s := State{Source: zfs.Listing{Root: "vault/h"}, Target: zfs.Listing{Root: "tank/h"}}
	guid := uint64(0)
	for name, salt := range salts {
		guid++
		d := &zfs.Dataset{Name: name, Type: zfs.Filesystem, GUID: guid, Properties: map[string]zfs.Property{
			"readonly": {Value: "on", Source: "local"}, "canmount": {Value: "noauto", Source: "local"},
		}, Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "a", GUID: 100 + guid, CreateTXG: guid}}}
		if salt != "" {
			for p, v := range map[string]string{"encryption": "aes-256-gcm", "encryptionroot": name, "keyformat": "passphrase", "pbkdf2salt": salt, "pbkdf2iters": "350000"} {
				d.Properties[p] = zfs.Property{Value: v, Source: "-"}
			}
		}
		s.Source.Datasets = append(s.Source.Datasets, d)
	}
	tank := &zfs.Dataset{Name: "tank", Type: zfs.Filesystem, Properties: map[string]zfs.Property{"mountpoint": {Value: "/tank"}}}
	for p, v := range above {
		tank.Properties[p] = zfs.Property{Value: v}
	}
	s.Target.Ancestors = []*zfs.Dataset{tank}
	return Make(Request{Source: "vault/h", Target: "tank/h", Recursive: true, Restore: true, CarryProperties: true}, s)
}

// TestRestoreInheritsKeyIfSaltsMatch expects that a dataset inherits its key only if the salts prove that
// it is the same.
func TestRestoreInheritsKeyIfSaltsMatch(t *testing.T) {
	t.Parallel()
	p := restored(map[string]string{
		"vault/h": "1", "vault/h/a": "1", "vault/h/a/b": "1", "vault/h/own": "2", "vault/h/own/c": "2", "vault/h/own/d": "1", "vault/h/plain": "", "vault/h/plain/e": "1",
	}, nil)
	require.Empty(t, p.Conflicts)
	joins := map[string]string{}
	for _, d := range p.Datasets {
		joins[d.Target] = d.Restore.Joins
		require.True(t, d.Restore.Due)
		require.Equal(t, []string{"readonly", "canmount"}, d.Restore.Revert)
		require.Equal(t, "/"+d.Target, d.Restore.Mountpoint)
		set := d.Steps[0].Receive.Set
		require.Equal(t, []string{"on", "noauto", "on"}, []string{set["readonly"], set["canmount"], set[zfs.RestoreProperty]})
	}
	require.Equal(t, map[string]string{
		"tank/h": "", "tank/h/a": "tank/h", "tank/h/a/b": "tank/h", "tank/h/own": "", "tank/h/own/c": "tank/h/own", "tank/h/own/d": "", "tank/h/plain": "", "tank/h/plain/e": "",
	}, joins)
}

// TestRestoreBelowReadOnlyAncestor expects that a note shows an ancestor that makes the dataset
// read-only.
func TestRestoreBelowReadOnlyAncestor(t *testing.T) {
	t.Parallel()
	p := restored(map[string]string{"vault/h": ""}, map[string]string{"readonly": "on", "mountpoint": "legacy"})
	require.Equal(t, []string{"tank/h will be read-only, because tank is; to make it writable, add {{set readonly=off}}"}, p.Notes)
	require.Empty(t, p.Datasets[0].Restore.Mountpoint)
}

// TestRestoreTreeToOtherMountpoint expects that a requested mountpoint applies to the root of a
// tree; the descendants are mounted below it.
func TestRestoreTreeToOtherMountpoint(t *testing.T) {
	t.Parallel()
	s := State{Source: zfs.Listing{Root: "vault/h"}, Target: zfs.Listing{Root: "tank/h"}}
	for i, name := range []string{"vault/h", "vault/h/a"} {
		guid := uint64(i + 1)
		s.Source.Datasets = append(s.Source.Datasets, &zfs.Dataset{Name: name, Type: zfs.Filesystem, GUID: guid,
			Versions: []zfs.Version{{Kind: zfs.Snapshot, Name: "a", GUID: 100 + guid, CreateTXG: guid}}})
	}
	s.Target.Ancestors = []*zfs.Dataset{{Name: "tank", Type: zfs.Filesystem, Properties: map[string]zfs.Property{"mountpoint": {Value: "/tank"}}}}
	req := Request{Source: "vault/h", Target: "tank/h", Recursive: true, Restore: true, Set: map[string]string{"mountpoint": "/srv/h"}}
	p := Make(req, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, "/srv/h", p.Datasets[0].Steps[0].Receive.Set["mountpoint"])
	require.NotContains(t, p.Datasets[1].Steps[0].Receive.Set, "mountpoint")
	require.Equal(t, []string{"/srv/h", "/srv/h/a"}, []string{p.Datasets[0].Restore.Mountpoint, p.Datasets[1].Restore.Mountpoint})

	// A filesystem that is not mounted has no mountpoint in the plan.
	req.Set = map[string]string{"canmount": "off"}
	for _, d := range Make(req, s).Datasets {
		require.Empty(t, d.Restore.Mountpoint)
	}
}

// TestRestoreOverVolume expects that a volume is not mounted. A note warns of programs that use
// it.
func TestRestoreOverVolume(t *testing.T) {
	t.Parallel()
	at := func(name string, snapshots ...uint64) *zfs.Dataset {
		d := &zfs.Dataset{Name: name, Type: zfs.Volume, GUID: 1, Properties: map[string]zfs.Property{}}
		for _, guid := range snapshots {
			d.Versions = append(d.Versions, zfs.Version{Kind: zfs.Snapshot, Name: fmt.Sprintf("s%d", guid), GUID: guid, CreateTXG: guid})
		}
		return d
	}
	s := State{Source: zfs.Listing{Root: "vault/v", Datasets: []*zfs.Dataset{at("vault/v", 1, 2)}}, Target: zfs.Listing{Root: "tank/v", Datasets: []*zfs.Dataset{at("tank/v", 1)}}}
	req := Request{Source: "vault/v", Target: "tank/v", Restore: true}
	require.Contains(t, Make(req, s).Notes[0], "stop all programs that use")
	req.Rollback = true
	require.Contains(t, Make(req, s).Datasets[0].Loses[0], "stop its users first")
}

// TestRestoreSkipsLocationProperties expects that a restore skips properties that depend on the
// location, and lists them.
func TestRestoreSkipsLocationProperties(t *testing.T) {
	t.Parallel()
	d := dataset(t, "tank/a", "@a,1", "quota=7", "atime=off")
	p := Make(request().with(func(r *Request) { r.Restore, r.CarryProperties = true, true }), stateOf(d))
	require.Empty(t, p.Conflicts)
	require.NotContains(t, p.Datasets[0].Steps[0].Receive.Set, "quota")
	require.Equal(t, "off", p.Datasets[0].Steps[0].Receive.Set["atime"])
	require.Contains(t, notes(p), "not set on the target: quota of tank/a: they depend on the dataset's location; ")
}

// TestRestoreOverModifiedOriginal expects that if the original was modified, the first hint is to
// restore to another target.
func TestRestoreOverModifiedOriginal(t *testing.T) {
	t.Parallel()
	req := request().with(func(r *Request) { r.Restore = true })
	p := Make(req, stateOf(dataset(t, "tank/a", "@a,1 @b,2"), dataset(t, "vault/a", "@a,1", "written=512")))
	requireConflict(t, p, Modified, "restore to another target", "{{rollback}}")
}

// TestRestoreInheritsKeyLikeCopy restores a tree whose key is not a passphrase. It expects that a
// dataset that inherits its key in the copy does so again if this restore brings its root too.
func TestRestoreInheritsKeyLikeCopy(t *testing.T) {
	t.Parallel()
	sealed := func(name, root string, versions string, more ...string) *zfs.Dataset {
		return withoutSalt(dataset(t, name, versions, encryptedProps(root, "", more...)...))[0]
	}
	takes := func(target ...*zfs.Dataset) map[string]string {
		p := Make(request().with(func(r *Request) { r.Recursive, r.Restore, r.AllowKeyChange = true, true, true }), stateOf(append([]*zfs.Dataset{
			sealed("tank/a", "tank/a", "@a,1"), sealed("tank/a/b", "tank/a", "@a,2"), sealed("tank/a/b/c", "tank/a", "@a,3"),
			sealed("tank/a/own", "tank/a/own", "@a,4"), sealed("tank/a/own/d", "tank/a/own", "@a,5"),
			sealed("tank/a/clone", "tank/a", "@b,6", "origin=tank/a/b@a"),
		}, target...)...))
		require.Empty(t, p.Conflicts)
		out := map[string]string{}
		for _, d := range p.Datasets {
			if d.Restore.AssertedRoot != "" {
				out[d.Target] = d.Restore.AssertedRoot
			}
		}
		return out
	}
	all := map[string]string{"vault/a/b": "vault/a", "vault/a/b/c": "vault/a", "vault/a/own/d": "vault/a/own"}
	require.Equal(t, all, takes())
	// An interrupted restore brought the root before; a root that existed may
	// have another key.
	require.Equal(t, all, takes(sealed("vault/a", "vault/a", "@a,1", zfs.RestoreProperty+"=on")))
	require.Equal(t, map[string]string{"vault/a/own/d": "vault/a/own"}, takes(sealed("vault/a", "vault/a", "@a,1")))
}
