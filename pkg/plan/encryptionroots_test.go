package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

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
			require.Equal(t, []string{"vault/a/b"}, p.Datasets[0].NewRoots)
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
	require.True(t, NeedKeyDependents(all, s))
	p := Make(all, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, []string{"vault/a/b", "vault/a/gone"}, p.Datasets[0].NewRoots)
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
	require.False(t, NeedKeyDependents(all, s))
	require.Empty(t, Make(all, s).Datasets[0].NewRoots)
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
		require.Equal(t, []string{"vault/a/c/gone", "vault/a/c/d", "vault/a/c"}, by["vault/a/c"].NewRoots)
		for _, name := range by["vault/a/c"].NewRoots {
			require.True(t, by["vault/a/c"].MustBecomeRoot(name), name)
		}
		require.Equal(t, []string{"vault/a/c/d"}, by["vault/a/c/d"].NewRoots)
		require.Empty(t, by["vault/a/e"].NewRoots)
		require.Empty(t, by["vault/a/c"].Joins)
		require.Equal(t, "vault/a/c", by["vault/a/c/d"].Joins)
		require.Contains(t, notes(p), "alpha:tank/a/c became an encryption root on the source")

		// If it is sent alone, its descendants must be listed too.
		alone := Request{Source: "tank/a/c", Target: "vault/a/c"}
		s := state()
		s.Source = zfs.Listing{Root: "tank/a/c", Datasets: s.Source.Datasets[1:2], Ancestors: s.Source.Datasets[:1]}
		s.Target.Ancestors = append(s.Target.Ancestors, s.Target.Datasets[0])
		s.Target.Datasets = s.Target.Datasets[1:2]
		require.True(t, NeedKeyDependents(alone, s))

		// A copy is not split without its record, without its root's key, if it was not received raw, or
		// if it is a clone.
		s = state()
		delete(s.Target.Datasets[1].Properties, zfs.FlagsProperty)
		requireConflict(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		for name, value := range map[string]string{zfs.FlagsProperty: "Lec", "origin": "vault/a/e@a"} {
			s = state()
			s.Target.Datasets[1].Properties[name] = zfs.Property{Value: value, Source: "local"}
			require.Empty(t, Make(request().with(func(r *Request) { r.Recursive = true }), s).Datasets[1].NewRoots, name)
		}
		if shown {
			s = state()
			s.Target.Datasets[1].Properties["pbkdf2salt"] = zfs.Property{Value: "7"}
			requireConflict(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		}
	}
}
