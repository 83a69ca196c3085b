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
			req.Recursive, req.AnyKey = true, tt.skip
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
	req.AnyKey = true
	require.Empty(t, mustMake(t, req, stateOf(source, target("2"), native)).Conflicts, "the check is skipped")
	req.AnyKey = false
	clone := dataset(t, "vault/a/own", "", encrypted, "encryptionroot=vault/a", "origin=vault/a@a")
	require.Empty(t, mustMake(t, req, stateOf(source, target("2"), clone)).Conflicts, "a clone shares its key")
}

// encryptedProps returns the properties of an encrypted dataset with the given
// encryption root and salt, as set on tank and received on vault.
func encryptedProps(root, salt string, more ...string) []string {
	return append([]string{"encryption=aes-256-gcm", "encryptionroot=" + root, "keyformat=passphrase", "pbkdf2iters=350000", "pbkdf2salt=" + salt, "keystatus=unavailable", zfs.FlagsProperty + "=w"}, more...)
}

// TestTreeJoins expects that copies inherit their key like their sources if the salts prove that it
// is the same: new copies, and copies received as encryption roots before.
func TestTreeJoins(t *testing.T) {
	t.Parallel()
	tree := []*zfs.Dataset{
		dataset(t, "tank/a", "@a,1", encryptedProps("tank/a", "1")...), dataset(t, "tank/a/b", "@a,2", encryptedProps("tank/a", "1")...), dataset(t, "tank/a/b/c", "@a,3", encryptedProps("tank/a", "1")...),
		dataset(t, "tank/a/clone", "@b,6", encryptedProps("tank/a", "1", "origin=tank/a/b@a")...),
		dataset(t, "tank/a/own", "@a,4", encryptedProps("tank/a/own", "2")...), dataset(t, "tank/a/own/d", "@a,5", encryptedProps("tank/a/own", "2")...),
	}
	joins := func(req Request, target ...*zfs.Dataset) map[string]string {
		p := Make(req, stateOf(append(tree[:len(tree):len(tree)], target...)...))
		require.Empty(t, p.Conflicts)
		out := map[string]string{}
		for _, d := range p.ToJoin() {
			out[d.Target] = d.Joins
		}
		return out
	}
	all := request().with(func(r *Request) { r.Recursive = true })
	want := map[string]string{"vault/a/b": "vault/a", "vault/a/b/c": "vault/a", "vault/a/own/d": "vault/a/own"}
	require.Equal(t, want, joins(all))

	// An existing copy joins unless it inherits already, its key is loaded, or
	// its keylocation is set.
	root := dataset(t, "vault/a", "@a,1", encryptedProps("vault/a", "1")...)
	counterpart := func(properties ...string) map[string]string {
		return joins(all, root, dataset(t, "vault/a/b", "@a,2", properties...), dataset(t, "vault/a/b/c", "@a,3", encryptedProps("vault/a", "1")...),
			dataset(t, "vault/a/own", "@a,4", encryptedProps("vault/a/own", "2")...), dataset(t, "vault/a/own/d", "@a,5", encryptedProps("vault/a/own", "2")...))
	}
	require.Equal(t, map[string]string{"vault/a/b": "vault/a"}, counterpart(encryptedProps("vault/a/b", "1", "keylocation=prompt")...))
	require.Empty(t, counterpart(encryptedProps("vault/a", "1", "keylocation=none")...))
	require.Empty(t, counterpart(encryptedProps("vault/a/b", "1", "keylocation=file:///k")...))
	require.Empty(t, counterpart(encryptedProps("vault/a/b", "1", "keystatus=available")...))

	// A single dataset joins its existing parent.
	s := stateOf(tree[1], root)
	s.Target.Ancestors, s.Target.Datasets = append(s.Target.Ancestors, root), nil
	p := Make(Request{Source: "tank/a/b", Target: "vault/a/b"}, s)
	require.Equal(t, "vault/a", onlyDataset(t, p).Joins)
}

// TestPartOfTree plans a part of a tree whose root is outside, and expects that its topmost copy
// is the root.
func TestPartOfTree(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		part := func(versions ...string) State {
			all := []*zfs.Dataset{dataset(t, "tank", "", encryptedProps("tank", "2")...),
				dataset(t, "tank/a", versions[0], encryptedProps("tank", "2")...), dataset(t, "tank/a/b", versions[1], encryptedProps("tank", "2")...)}
			copies := []*zfs.Dataset{dataset(t, "vault/a", "@a,1", encryptedProps("vault/a", "2")...), dataset(t, "vault/a/b", "@a,2", encryptedProps("vault/a", "2")...)}
			if !told {
				withoutSalt(append(all, copies...)...)
			}
			s := stateOf(all[1:]...)
			s.Source.Ancestors = all[:1]
			if len(versions) > 2 {
				s.Target.Datasets = copies
			}
			return s
		}
		req := request().with(func(r *Request) { r.Recursive = true })
		p := Make(req, part("@a,1", "@a,2"))
		require.Empty(t, p.Conflicts)
		require.Len(t, p.ToJoin(), 1)
		require.Equal(t, "vault/a", p.Datasets[1].Joins)
		s := part("@a,1 @b,11", "@a,2 @b,12", "there")
		p = Make(req, s)
		require.Empty(t, p.Conflicts)
		require.Empty(t, p.Datasets[1].Joins)
		if told {
			for _, d := range s.Source.Ancestors {
				d.Properties["pbkdf2salt"] = zfs.Property{Value: "3"}
			}
			p = Make(req, s)
			require.Empty(t, p.Conflicts, "its key changed")
			require.Equal(t, []string{"vault/a/b"}, p.Datasets[0].Parts)
			require.Equal(t, "vault/a", p.Datasets[1].Joins)
			continue
		}
		require.Equal(t, []string{"vault/a/b"}, p.Datasets[0].KeyDependents())
		p = Make(req, part("@a,1", "@a,2 @b,12", "there"))
		require.Empty(t, p.Conflicts)
		require.Equal(t, "tank", p.Datasets[1].RequiredKeyRoot())
	}
}

// withoutSalt changes keys to a format of which ZFS shows nothing.
func withoutSalt(datasets ...*zfs.Dataset) []*zfs.Dataset {
	for _, d := range datasets {
		d.Properties["keyformat"] = zfs.Property{Value: "raw"}
		d.Properties["pbkdf2salt"], d.Properties["pbkdf2iters"] = zfs.Property{Value: "0"}, zfs.Property{Value: "0"}
	}
	return datasets
}

// TestTreeWithHiddenKey expects that for a key without salt, the source's assertion
// counts if root and dataset arrive together. A copy that is sent alone must keep its key.
func TestTreeWithHiddenKey(t *testing.T) {
	t.Parallel()
	all := request().with(func(r *Request) { r.Recursive = true })
	at := func(versions string) []*zfs.Dataset {
		return withoutSalt(dataset(t, "tank/a", versions, encryptedProps("tank/a", "")...), dataset(t, "tank/a/b", "@a,2 @b,12", encryptedProps("tank/a", "")...),
			dataset(t, "tank/a/own", "@a,3 @b,13", encryptedProps("tank/a/own", "")...))
	}
	takes := func(p Plan) map[string]string {
		require.Empty(t, p.Conflicts)
		out := map[string]string{}
		for _, d := range p.ToJoin() {
			out[d.Target] = d.AssertedRoot() + " " + d.Joins
		}
		return out
	}
	both := at("@a,1 @b,11")
	require.Equal(t, map[string]string{"vault/a/b": "vault/a vault/a"}, takes(Make(all, stateOf(both...))))
	root := withoutSalt(dataset(t, "vault/a", "@a,1", encryptedProps("vault/a", "")...))
	require.Equal(t, map[string]string{"vault/a/b": "vault/a vault/a"}, takes(Make(all, stateOf(append(both, root...)...))))
	require.Empty(t, takes(Make(all, stateOf(append(at("@a,1"), root...)...))), "the root gets no stream: its key may have changed")

	// An existing copy joins again only if it must become a root first.
	copies := append(root, withoutSalt(dataset(t, "vault/a/b", "@a,2", encryptedProps("vault/a", "")...), dataset(t, "vault/a/gone", "@a,4", encryptedProps("vault/a", "")...))...)
	p := Make(all, stateOf(append(both, copies...)...))
	require.Equal(t, map[string]string{"vault/a/b": "vault/a "}, takes(p))
	require.Equal(t, []string{"vault/a/b", "vault/a/gone"}, p.Datasets[0].KeyDependents())
	require.True(t, p.Datasets[0].MustBecomeRoot("vault/a/gone"))
	require.Empty(t, p.Datasets[1].RequiredKeyRoot(), "its root comes first")
	p = Make(all, stateOf(append(at("@a,1"), copies...)...))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "tank/a", p.Datasets[1].RequiredKeyRoot())
}

// TestInheritorBecomesRootBeforeKeyChange expects that if a copy inherits a key that changes, it
// becomes an encryption root first, and inherits again when it arrives.
func TestInheritorBecomesRootBeforeKeyChange(t *testing.T) {
	t.Parallel()
	all := request().with(func(r *Request) { r.Recursive = true })
	state := func(more ...*zfs.Dataset) State {
		return stateOf(append([]*zfs.Dataset{
			dataset(t, "tank/a", "@a,1 @b,11", encryptedProps("tank/a", "2")...), dataset(t, "tank/a/b", "@a,2 @b,12", encryptedProps("tank/a", "2")...),
			dataset(t, "vault/a", "@a,1", encryptedProps("vault/a", "1")...), dataset(t, "vault/a/b", "@a,2", encryptedProps("vault/a", "1")...),
		}, more...)...)
	}
	s := state(dataset(t, "vault/a/gone", "@a,3", encryptedProps("vault/a", "1")...), dataset(t, "vault/a/own", "@a,3", encryptedProps("vault/a/own", "1")...))
	require.True(t, NeedInheritors(all, s))
	p := Make(all, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, []string{"vault/a/b", "vault/a/gone"}, p.Datasets[0].Parts)
	require.False(t, p.Datasets[0].MustBecomeRoot("vault/a/b"))
	require.True(t, p.Datasets[0].MustBecomeRoot("vault/a/gone"))
	require.Contains(t, notes(p), "beta:vault/a/gone inherits its key from vault/a, whose key changes, and no stream brings it that key: zxfer makes it an encryption root with its present key")
	require.Equal(t, "vault/a", p.Datasets[1].Joins)

	// A copy does not join a root that does not open it at present.
	p = Make(all, state(dataset(t, "vault/a/gone", "@a,3", encryptedProps("vault/a", "7")...)))
	requireConflict(t, p, KeyChanged, "vault/a/gone inherits its key from vault/a")

	// The same key, so nothing changes.
	s = state()
	s.Source.Datasets[0].Properties["pbkdf2salt"] = zfs.Property{Value: "1"}
	require.False(t, NeedInheritors(all, s))
	require.Empty(t, Make(all, s).Datasets[0].Parts)
}

// TestTreeContinuesInParts expects that a copy whose source's root was not listed continues if it has
// the source's key by now.
func TestTreeContinuesInParts(t *testing.T) {
	t.Parallel()
	req := Request{Source: "tank/a/b", Target: "vault/a/b"}
	s := stateOf(dataset(t, "tank/a/b", "@a,2 @b,12", encryptedProps("tank/a", "1")...), dataset(t, "vault/a/b", "@a,2", encryptedProps("vault/a", "1")...))
	require.Equal(t, "@a>@b", stepsText(onlyDataset(t, Make(req, s))))
	s.Source.Datasets[0].Properties["pbkdf2salt"] = zfs.Property{Value: "2"}
	requireConflict(t, Make(req, s), KeyChanged, "openzfs#12614")
}

// TestTreeSplits sends a tree in which a child became an encryption root on the source, with
// visible and hidden keys. It expects that its copy and all descendants with the same root become
// roots of their present key before the stream brings the new one.
func TestTreeSplits(t *testing.T) {
	t.Parallel()
	for _, shown := range []bool{true, false} {
		as := func(d *zfs.Dataset) *zfs.Dataset {
			if !shown {
				withoutSalt(d)
			}
			return d
		}
		state := func(more ...*zfs.Dataset) State {
			return stateOf(append([]*zfs.Dataset{
				as(dataset(t, "tank/a", "@a,1 @b,11", encryptedProps("tank/a", "1")...)), as(dataset(t, "tank/a/c", "@a,2 @b,12", encryptedProps("tank/a/c", "2")...)),
				as(dataset(t, "tank/a/c/d", "@a,3 @b,13", encryptedProps("tank/a/c", "2")...)), as(dataset(t, "tank/a/e", "@a,4 @b,14", encryptedProps("tank/a", "1")...)),
				as(dataset(t, "vault/a", "@a,1", encryptedProps("vault/a", "1")...)), as(dataset(t, "vault/a/c", "@a,2", encryptedProps("vault/a", "1")...)),
				as(dataset(t, "vault/a/c/d", "@a,3", encryptedProps("vault/a", "1")...)), as(dataset(t, "vault/a/c/gone", "@a,9", encryptedProps("vault/a", "1")...)),
				as(dataset(t, "vault/a/e", "@a,4", encryptedProps("vault/a", "1")...)),
			}, more...)...)
		}
		p := Make(request().with(func(r *Request) { r.Recursive = true }), state())
		require.Empty(t, p.Conflicts, "%t", shown)
		by := map[string]*Dataset{}
		for _, d := range p.Datasets {
			by[d.Target] = d
		}
		require.Equal(t, []string{"vault/a/c/gone", "vault/a/c/d", "vault/a/c"}, by["vault/a/c"].Parts)
		for _, name := range by["vault/a/c"].Parts {
			require.True(t, by["vault/a/c"].MustBecomeRoot(name), name)
		}
		require.Equal(t, []string{"vault/a/c/d"}, by["vault/a/c/d"].Parts)
		require.Empty(t, by["vault/a/e"].Parts)
		require.Empty(t, by["vault/a/c"].Joins)
		require.Equal(t, "vault/a/c", by["vault/a/c/d"].Joins)
		require.Contains(t, notes(p), "alpha:tank/a/c became an encryption root on the source")

		// If it is sent alone, its descendants must be listed too.
		alone := Request{Source: "tank/a/c", Target: "vault/a/c"}
		s := state()
		s.Source = zfs.Listing{Root: "tank/a/c", Datasets: s.Source.Datasets[1:2], Ancestors: s.Source.Datasets[:1]}
		s.Target.Ancestors = append(s.Target.Ancestors, s.Target.Datasets[0])
		s.Target.Datasets = s.Target.Datasets[1:2]
		require.True(t, NeedInheritors(alone, s))

		// A copy without record, or without its root's key, is not split.
		s = state()
		delete(s.Target.Datasets[1].Properties, zfs.FlagsProperty)
		requireConflict(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		if shown {
			s = state()
			s.Target.Datasets[1].Properties["pbkdf2salt"] = zfs.Property{Value: "7"}
			requireConflict(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		}
	}
}
