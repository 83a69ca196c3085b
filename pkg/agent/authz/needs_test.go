package authz

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs/zfsmem"
)

// TestEveryChangeNamesItsGrant expects that each operation which a grant can permit names the grant, so that
// refusals and checks do too.
func TestEveryChangeNamesItsGrant(t *testing.T) {
	t.Parallel()
	known := AllGrants()
	isVerb := func(verb string) bool {
		for _, g := range known {
			if g.Verb == verb {
				return true
			}
		}
		return false
	}
	for op, r := range rules() {
		verbs, destroys := r.needed()
		for _, v := range verbs {
			require.True(t, isVerb(v), "%s: %s", op, v)
		}
		_, err := r.admit(t.Context(), NewGuard(&Policy{}, emptyVault(), func(string) {}), Request{Op: op, Body: []byte(`null`)})
		free := err == nil || strings.Contains(err.Error(), errHostFacts.Error()) || strings.Contains(err.Error(), "a restricted key cannot") ||
			strings.Contains(err.Error(), "no rule allows")
		if op != "offer" && !free {
			require.NotEmpty(t, verbs, op)
		}
		require.Equal(t, op == "destroy" || op == "destroy-orphans", destroys, op)
	}
}

func TestLacks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		flags   string
		op      hosts.Operation
		dataset string
		copied  bool
		want    string
	}{
		{"--allow send=tank/vm", hosts.OpDestroy, "tank/vm", false, ""},
		{"--allow send=tank", hosts.OpSnapshot, "tank/vm", false, ""},
		{"--allow send=tank/vm --append-only", hosts.OpDestroy, "tank/vm", false, "omit --append-only"},
		{"--allow send=tank/vm", hosts.OpTransfer, "tank", false, "add --allow send=tank"},
		{"--allow send=tank/vm", hosts.OpTransfer, "vault/a b", true, "add --allow 'receive=vault/a b'"},
		{"--allow restore=vault", hosts.OpTransfer, "vault/a", true, ""},
		{"--allow receive-rekey=vault", hosts.OpHold, "vault/a", true, ""},
		{"--allow receive=vault --append-only", hosts.OpDestroyOrphans, "vault/a", true, "add --allow remove=vault/a, and omit --append-only"},
		{"--allow receive=vault", hosts.OpCreateDrillClone, "vault/a", true, "add --allow drill=vault/a"},
		{"--allow receive=vault", hosts.OpFacts, "vault/a", true, ""},
	} {
		p, err := ParseFlags(strings.Fields(c.flags))
		require.NoError(t, err)
		require.Equal(t, c.flags, p.String())
		require.Equal(t, c.want, p.Lacks(c.op, c.dataset, c.copied), "%s: %s of %s", c.flags, c.op.Name(), c.dataset)
	}
	for _, bad := range [][]string{{"--audit", "x"}, {"--allow"}, {"--peer", "x"}, {"x"}} {
		_, err := ParseFlags(bad)
		require.Error(t, err, bad)
	}
}

// TestRefusalNamesMissingGrant expects that a refusal names the words to add to authorized_keys.
func TestRefusalNamesMissingGrant(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Receive: []string{"vault/web1"}}, hosts.On(zfsmem.New("vault/web1"), "test", func(string) {}), func(string) {})
	for op, want := range map[string]string{
		`create-drill-clone {"snapshot":"vault/web1/a@x"}`: "--allow drill=vault/web1/a",
		`snapshot ["vault/web1@x"]`:                        "--allow send=vault/web1",
		`scrub "vault/web1"`:                               "--allow heal=vault/web1",
		`mount {"dataset":"vault/web1"}`:                   "--allow restore=",
		`create-parents "tank/a"`:                          "--allow receive=tank/a",
		`list {"dataset":"tank/a b"}`:                      "--allow 'send=tank/a b' or --allow 'receive=tank/a b'",
		`transfer {"from":{"stream":{"spec":{"dataset":"vault/web1","to":"x"}}},"to":{"accept":{"session":"s"}}}`: "--allow send=vault/web1",
	} {
		name, body, _ := strings.Cut(op, " ")
		_, err := admit(t, g, name, body)
		require.Equal(t, fault.Refused, fault.ClassOf(err), op)
		require.ErrorContains(t, err, want, op)
		require.Contains(t, fault.HintOf(err), "the key has: --allow receive=vault/web1", op)
	}
	// A name that is not a dataset does not get into the advice.
	_, err := admit(t, g, "scrub", `"vault/x; rm"`)
	require.NotContains(t, err.Error(), "--allow")
}

// TestPermittedOfReadableDatasets expects that a key reads the permissions of its account on its datasets and
// their ancestors, and on no other.
func TestPermittedOfReadableDatasets(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Receive: []string{"vault/web1"}}, hosts.On(zfsmem.New("vault/web1"), "test", func(string) {}), func(string) {})
	for dataset, admitted := range map[string]bool{"vault": true, "vault/web1": true, "vault/web1/a": true, "vault/web": false, "vault/other": false, "tank": false, "": false} {
		_, err := g.Admit(t.Context(), Request{Op: hosts.OpPermitted.Name(), Body: []byte(`"` + dataset + `"`)})
		require.Equal(t, admitted, err == nil, dataset)
	}
}
