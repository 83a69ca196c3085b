package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// TestTargetKeyChanged expects that a raw incremental send is refused if the copy's encryption root
// is not the copy of the source's root (openzfs#12614). If the copy is an encryption root, a note
// reports its new key.
func TestTargetKeyChanged(t *testing.T) {
	t.Parallel()
	const raw, own, joined = zfs.FlagsProperty + "=w", "encryptionroot=vault/a/c", "encryptionroot=vault/a"
	pass := func(salt string) []string {
		return []string{"keyformat=passphrase", "pbkdf2iters=350000", "pbkdf2salt=" + salt}
	}
	bytes := []string{"keyformat=raw", "pbkdf2iters=0", "pbkdf2salt=0"}
	all := func(lists ...[]string) (out []string) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	root := []string{"encryptionroot=tank/a"}
	tests := []struct {
		name                   string
		source, target, parent []string // tank/a/c, vault/a/c and vault/a
		skip, parentSent       bool
		refused                string
		note                   string
		needs                  bool
	}{
		{name: "an encryption root", source: root, target: []string{own, raw}, parent: []string{raw}},
		{name: "inherits from another root", source: root, target: []string{"encryptionroot=vault", raw}, parent: []string{raw}, refused: "from vault/a/c to vault:"},
		{name: "inherits from the copy of its root", source: root, target: []string{joined, raw}, parent: []string{raw}, refused: "from vault/a/c to vault/a:"},
		{name: "inherits from a copy of its root, same passphrase", source: all(root, pass("1")), target: all([]string{joined, raw}, pass("1")), parent: all(pass("1"), []string{raw})},
		{name: "inherits from a copy of its root, another passphrase", source: all(root, pass("1")), target: all([]string{joined, raw}, pass("2")), parent: all(pass("2"), []string{raw}), refused: "no key would open"},
		{name: "inherits from a copy of its root, not a passphrase", source: all(root, bytes), target: all([]string{joined, raw}, bytes), parent: all(bytes, []string{raw}), refused: "unless vault/a and alpha:tank/a have the same key, which ZFS does not show"},
		{name: "inherits from a copy of its root, which arrives first", source: all(root, bytes), target: all([]string{joined, raw}, bytes), parent: all(bytes, []string{raw}), parentSent: true, needs: true},
		{name: "inherits from another root, not a passphrase", source: all(root, bytes), target: all([]string{"encryptionroot=vault", raw}, bytes), parent: []string{raw}, refused: "from vault/a/c to vault:"},
		{name: "inherits from another root, key not loaded", source: root, target: []string{"encryptionroot=vault", raw, locked}, parent: []string{raw}, refused: "zfs load-key vault && zfs change-key"},
		{name: "inherits from another root, skipped", source: root, target: []string{"encryptionroot=vault", raw}, parent: []string{raw}, skip: true},
		{name: "received in a package", source: root, target: []string{joined}},
		{name: "received in a package, now inherits from another root", source: root, target: []string{"encryptionroot=vault"}, refused: "from vault/a to vault:"},
		{name: "received in a package, source now a root", source: []string{"encryptionroot=tank/a/c"}, target: []string{joined}, refused: "from vault/a/c to vault/a:"},
		{name: "received in a package, key of the root changed", source: all(root, pass("1")), target: all([]string{joined}, pass("1")), parent: pass("2"), refused: "inherits its key from vault/a"},
		{name: "received in a package, key of the root arrives first", source: all(root, pass("1")), target: all([]string{joined}, pass("1")), parent: pass("2"), parentSent: true, needs: true},
		{name: "a clone shares its origin's root", source: root, target: []string{joined, raw, "origin=vault/a@a"}, parent: []string{raw}},
		{name: "another passphrase", source: all([]string{"encryptionroot=tank/a/c"}, pass("1")), target: all([]string{own, raw}, pass("2")), parent: []string{raw}, note: "the key of beta:vault/a/c differs from the key of alpha:tank/a/c: this stream brings"},
		{name: "another format", source: all([]string{"encryptionroot=tank/a/c"}, bytes), target: all([]string{own, raw, "keylocation=prompt"}, pass("2")), parent: []string{raw}, note: "brings the key of alpha:tank/a/c; from then on"},
		{name: "possibly another file", source: all([]string{"encryptionroot=tank/a/c"}, bytes), target: all([]string{own, raw, "keylocation=file:///k2"}, bytes), parent: []string{raw}, note: "(its keylocation is still file:///k2)"},
		{name: "no file", source: all([]string{"encryptionroot=tank/a/c", "keylocation=file:///k"}, bytes), target: all([]string{own, raw}, bytes), parent: []string{raw}},
		{name: "the same file", source: all([]string{"encryptionroot=tank/a/c", "keylocation=file:///k"}, bytes), target: all([]string{own, raw, "keylocation=file:///k"}, bytes), parent: []string{raw}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			versions := "@a,1"
			if tt.parentSent {
				versions += " @b,3"
			}
			req := request()
			req.Recursive, req.AllowKeyChange = true, tt.skip
			p := mustMake(t, req, stateOf(
				dataset(t, "tank/a", versions, all([]string{encrypted, "encryptionroot=tank/a"}, pass("1"))...),
				dataset(t, "tank/a/c", "@a,2 @b,4", append(tt.source, encrypted)...),
				dataset(t, "vault/a", "@a,1", append(tt.parent, encrypted, "encryptionroot=vault/a")...),
				dataset(t, "vault/a/c", "@a,2", append(tt.target, encrypted)...)))
			if tt.refused != "" {
				requireConflict(t, p, KeyChanged, tt.refused, "zfs change-key -o keyformat=passphrase -o keylocation=prompt vault/a/c", "zfs rename vault/a/c", "{{skip-check target-key-changed}}")
				return
			}
			require.Empty(t, p.Conflicts)
			d := p.Datasets[1]
			require.Equal(t, "@a>@b", stepsText(d))
			require.Contains(t, d.NewKey, tt.note)
			require.Equal(t, tt.note == "", d.NewKey == "", d.NewKey)
			require.Contains(t, notes(p), d.NewKey)
			require.Equal(t, tt.needs, len(d.Needs) == 1, d.Needs)
		})
	}
}

// TestKeyOfRootAlone expects that dependents that get no stream together with their root do not
// lose their key.
func TestKeyOfRootAlone(t *testing.T) {
	t.Parallel()
	source := dataset(t, "tank/a", "@a,1 @b,2", encrypted, "keyformat=passphrase", "pbkdf2salt=1")
	target := func(salt string) *zfs.Dataset {
		return dataset(t, "vault/a", "@a,1", encrypted, "encryptionroot=vault/a", "keyformat=passphrase", "pbkdf2salt="+salt)
	}
	native := dataset(t, "vault/a/own", "@x,9", encrypted, "encryptionroot=vault/a")
	req := request()
	req.Recursive = true
	requireConflict(t, mustMake(t, req, stateOf(source, target("2"), native)), KeyChanged, "beta:vault/a/own inherits its key from vault/a", "openzfs#12614", "change-key")
	require.Empty(t, mustMake(t, req, stateOf(source, target("1"), native)).Conflicts)
	req.AllowKeyChange = true
	require.Empty(t, mustMake(t, req, stateOf(source, target("2"), native)).Conflicts, "the check is skipped")
	req.AllowKeyChange = false
	clone := dataset(t, "vault/a/own", "", encrypted, "encryptionroot=vault/a", "origin=vault/a@a")
	require.Empty(t, mustMake(t, req, stateOf(source, target("2"), clone)).Conflicts, "a clone shares its key")
}
