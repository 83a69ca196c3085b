package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// sealedAs are the properties of an encrypted dataset, with the root and the salt of its
// key, as of tank what was set and of vault what was received.
func sealedAs(root, salt string, more ...string) []string {
	return append([]string{"encryption=aes-256-gcm", "encryptionroot=" + root, "keyformat=passphrase", "pbkdf2iters=350000", "pbkdf2salt=" + salt, "keystatus=unavailable", zfs.FlagsProperty + "=w"}, more...)
}

// Copies take their key from above as their sources do, where salts prove that it is
// one: new ones, and those that came as roots of their own before.
func TestTreeJoins(t *testing.T) {
	t.Parallel()
	tree := []*zfs.Dataset{
		dataset(t, "tank/a", "@a,1", sealedAs("tank/a", "1")...), dataset(t, "tank/a/b", "@a,2", sealedAs("tank/a", "1")...), dataset(t, "tank/a/b/c", "@a,3", sealedAs("tank/a", "1")...),
		dataset(t, "tank/a/clone", "@b,6", sealedAs("tank/a", "1", "origin=tank/a/b@a")...),
		dataset(t, "tank/a/own", "@a,4", sealedAs("tank/a/own", "2")...), dataset(t, "tank/a/own/d", "@a,5", sealedAs("tank/a/own", "2")...),
	}
	joins := func(req Request, target ...*zfs.Dataset) map[string]string {
		p := Make(req, given(append(tree[:len(tree):len(tree)], target...)...))
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

	// What is there joins, unless it has, its key is loaded, or it is known where it is.
	root := dataset(t, "vault/a", "@a,1", sealedAs("vault/a", "1")...)
	there := func(properties ...string) map[string]string {
		return joins(all, root, dataset(t, "vault/a/b", "@a,2", properties...), dataset(t, "vault/a/b/c", "@a,3", sealedAs("vault/a", "1")...),
			dataset(t, "vault/a/own", "@a,4", sealedAs("vault/a/own", "2")...), dataset(t, "vault/a/own/d", "@a,5", sealedAs("vault/a/own", "2")...))
	}
	require.Equal(t, map[string]string{"vault/a/b": "vault/a"}, there(sealedAs("vault/a/b", "1", "keylocation=prompt")...))
	require.Empty(t, there(sealedAs("vault/a", "1", "keylocation=none")...))
	require.Empty(t, there(sealedAs("vault/a/b", "1", "keylocation=file:///k")...))
	require.Empty(t, there(sealedAs("vault/a/b", "1", "keystatus=available")...))

	// One alone joins what is there above it.
	s := given(tree[1], root)
	s.Target.Ancestors, s.Target.Datasets = append(s.Target.Ancestors, root), nil
	p := Make(Request{Source: "tank/a/b", Target: "vault/a/b"}, s)
	require.Equal(t, "vault/a", only(t, p).Joins)
}

// Part of a tree whose root is above it: its highest copy is the root.
func TestTreeOfAPart(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		part := func(versions ...string) State {
			all := []*zfs.Dataset{dataset(t, "tank", "", sealedAs("tank", "2")...),
				dataset(t, "tank/a", versions[0], sealedAs("tank", "2")...), dataset(t, "tank/a/b", versions[1], sealedAs("tank", "2")...)}
			copies := []*zfs.Dataset{dataset(t, "vault/a", "@a,1", sealedAs("vault/a", "2")...), dataset(t, "vault/a/b", "@a,2", sealedAs("vault/a", "2")...)}
			if !told {
				untold(append(all, copies...)...)
			}
			s := given(all[1:]...)
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
		require.Equal(t, []string{"vault/a/b"}, p.Datasets[0].Inherit())
		p = Make(req, part("@a,1", "@a,2 @b,12", "there"))
		require.Empty(t, p.Conflicts)
		require.Equal(t, "tank", p.Datasets[1].KeepsKey())
	}
}

// untold makes the keys of datasets such that ZFS shows nothing of.
func untold(datasets ...*zfs.Dataset) []*zfs.Dataset {
	for _, d := range datasets {
		d.Properties["keyformat"] = zfs.Property{Value: "raw"}
		d.Properties["pbkdf2salt"], d.Properties["pbkdf2iters"] = zfs.Property{Value: "0"}, zfs.Property{Value: "0"}
	}
	return datasets
}

// Of a key without a salt the source is believed, where root and dataset arrive at once;
// what a copy gets alone may bring no other.
func TestTreeOfAKeyThatZFSDoesNotShow(t *testing.T) {
	t.Parallel()
	all := request().with(func(r *Request) { r.Recursive = true })
	at := func(versions string) []*zfs.Dataset {
		return untold(dataset(t, "tank/a", versions, sealedAs("tank/a", "")...), dataset(t, "tank/a/b", "@a,2 @b,12", sealedAs("tank/a", "")...),
			dataset(t, "tank/a/own", "@a,3 @b,13", sealedAs("tank/a/own", "")...))
	}
	takes := func(p Plan) map[string]string {
		require.Empty(t, p.Conflicts)
		out := map[string]string{}
		for _, d := range p.ToJoin() {
			out[d.Target] = d.Takes() + " " + d.Joins
		}
		return out
	}
	both := at("@a,1 @b,11")
	require.Equal(t, map[string]string{"vault/a/b": "vault/a vault/a"}, takes(Make(all, given(both...))))
	root := untold(dataset(t, "vault/a", "@a,1", sealedAs("vault/a", "")...))
	require.Equal(t, map[string]string{"vault/a/b": "vault/a vault/a"}, takes(Make(all, given(append(both, root...)...))))
	require.Empty(t, takes(Make(all, given(append(at("@a,1"), root...)...))), "the root brings nothing: it may have another key by now")

	// What is there already does so again only if it has to part.
	copies := append(root, untold(dataset(t, "vault/a/b", "@a,2", sealedAs("vault/a", "")...), dataset(t, "vault/a/gone", "@a,4", sealedAs("vault/a", "")...))...)
	p := Make(all, given(append(both, copies...)...))
	require.Equal(t, map[string]string{"vault/a/b": "vault/a "}, takes(p))
	require.Equal(t, []string{"vault/a/b", "vault/a/gone"}, p.Datasets[0].Inherit())
	require.True(t, p.Datasets[0].StuckReason("vault/a/gone"))
	require.Empty(t, p.Datasets[1].KeepsKey(), "its root comes first")
	p = Make(all, given(append(at("@a,1"), copies...)...))
	require.Empty(t, p.Conflicts)
	require.Equal(t, "tank/a", p.Datasets[1].KeepsKey())
}

// What takes its key from a copy whose key changes is made a root of its own before, and
// joins again where it arrives.
func TestTreeParts(t *testing.T) {
	t.Parallel()
	all := request().with(func(r *Request) { r.Recursive = true })
	state := func(more ...*zfs.Dataset) State {
		return given(append([]*zfs.Dataset{
			dataset(t, "tank/a", "@a,1 @b,11", sealedAs("tank/a", "2")...), dataset(t, "tank/a/b", "@a,2 @b,12", sealedAs("tank/a", "2")...),
			dataset(t, "vault/a", "@a,1", sealedAs("vault/a", "1")...), dataset(t, "vault/a/b", "@a,2", sealedAs("vault/a", "1")...),
		}, more...)...)
	}
	s := state(dataset(t, "vault/a/gone", "@a,3", sealedAs("vault/a", "1")...), dataset(t, "vault/a/own", "@a,3", sealedAs("vault/a/own", "1")...))
	require.True(t, NeedInheritors(all, s))
	p := Make(all, s)
	require.Empty(t, p.Conflicts)
	require.Equal(t, []string{"vault/a/b", "vault/a/gone"}, p.Datasets[0].Parts)
	require.False(t, p.Datasets[0].StuckReason("vault/a/b"))
	require.True(t, p.Datasets[0].StuckReason("vault/a/gone"))
	require.Contains(t, notes(p), "beta:vault/a/gone takes its key from vault/a, which changes, and no stream brings it that key")
	require.Equal(t, "vault/a", p.Datasets[1].Joins)

	// What does not open by the root now is not made to seem so.
	p = Make(all, state(dataset(t, "vault/a/gone", "@a,3", sealedAs("vault/a", "7")...)))
	refused(t, p, KeyChanged, "vault/a/gone takes its key from vault/a")

	// The same key, and nothing of it.
	s = state()
	s.Source.Datasets[0].Properties["pbkdf2salt"] = zfs.Property{Value: "1"}
	require.False(t, NeedInheritors(all, s))
	require.Empty(t, Make(all, s).Datasets[0].Parts)
}

// A copy whose root was not listed goes on where it has the source's key by now.
func TestTreeGoesOnByParts(t *testing.T) {
	t.Parallel()
	req := Request{Source: "tank/a/b", Target: "vault/a/b"}
	s := given(dataset(t, "tank/a/b", "@a,2 @b,12", sealedAs("tank/a", "1")...), dataset(t, "vault/a/b", "@a,2", sealedAs("vault/a", "1")...))
	require.Equal(t, "@a>@b", steps(only(t, Make(req, s))))
	s.Source.Datasets[0].Properties["pbkdf2salt"] = zfs.Property{Value: "2"}
	refused(t, Make(req, s), KeyChanged, "openzfs#12614")
}

// TestTreeSplits sends a tree of which a child became an encryption root on the source. Its copy, and
// all below it that takes its key from the same root, become roots of the key that they have before
// the stream brings the new one, whether ZFS shows anything of the key or not.
func TestTreeSplits(t *testing.T) {
	t.Parallel()
	for _, shown := range []bool{true, false} {
		as := func(d *zfs.Dataset) *zfs.Dataset {
			if !shown {
				untold(d)
			}
			return d
		}
		state := func(more ...*zfs.Dataset) State {
			return given(append([]*zfs.Dataset{
				as(dataset(t, "tank/a", "@a,1 @b,11", sealedAs("tank/a", "1")...)), as(dataset(t, "tank/a/c", "@a,2 @b,12", sealedAs("tank/a/c", "2")...)),
				as(dataset(t, "tank/a/c/d", "@a,3 @b,13", sealedAs("tank/a/c", "2")...)), as(dataset(t, "tank/a/e", "@a,4 @b,14", sealedAs("tank/a", "1")...)),
				as(dataset(t, "vault/a", "@a,1", sealedAs("vault/a", "1")...)), as(dataset(t, "vault/a/c", "@a,2", sealedAs("vault/a", "1")...)),
				as(dataset(t, "vault/a/c/d", "@a,3", sealedAs("vault/a", "1")...)), as(dataset(t, "vault/a/c/gone", "@a,9", sealedAs("vault/a", "1")...)),
				as(dataset(t, "vault/a/e", "@a,4", sealedAs("vault/a", "1")...)),
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
			require.True(t, by["vault/a/c"].StuckReason(name), name)
		}
		require.Equal(t, []string{"vault/a/c/d"}, by["vault/a/c/d"].Parts)
		require.Empty(t, by["vault/a/e"].Parts)
		require.Empty(t, by["vault/a/c"].Joins)
		require.Equal(t, "vault/a/c", by["vault/a/c/d"].Joins)
		require.Contains(t, notes(p), "alpha:tank/a/c became an encryption root on the source")

		// Alone, what is below it has to be known, too.
		alone := Request{Source: "tank/a/c", Target: "vault/a/c"}
		s := state()
		s.Source = zfs.Listing{Root: "tank/a/c", Datasets: s.Source.Datasets[1:2], Ancestors: s.Source.Datasets[:1]}
		s.Target.Ancestors = append(s.Target.Ancestors, s.Target.Datasets[0])
		s.Target.Datasets = s.Target.Datasets[1:2]
		require.True(t, NeedInheritors(alone, s))

		// A copy that nothing is known of, or whose key is not that of its root, is no such one.
		s = state()
		delete(s.Target.Datasets[1].Properties, zfs.FlagsProperty)
		refused(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		if shown {
			s = state()
			s.Target.Datasets[1].Properties["pbkdf2salt"] = zfs.Property{Value: "7"}
			refused(t, Make(request().with(func(r *Request) { r.Recursive = true }), s), KeyChanged, "from vault/a/c to vault/a:")
		}
	}
}
