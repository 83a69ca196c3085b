package authz

import (
	"strings"
	"testing"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"
)

// FuzzPolicy expects that a policy written as flags parses to the same policy, and grants nothing
// outside its datasets.
func FuzzPolicy(f *testing.F) {
	f.Add("receive=vault/web1", "10.0.0.0/8", true, "vault/web10")
	f.Add("send=tank", "::ffff:192.0.2.1", false, "tank/a/../../b")
	f.Add("receive=vault/web1@x", "fe80::1%eth0", true, "vault")
	f.Fuzz(func(t *testing.T, grant, peer string, appendOnly bool, dataset string) {
		p, err := Parse([]string{grant}, []string{peer}, appendOnly)
		if err != nil {
			return
		}
		root := grant[strings.IndexByte(grant, '=')+1:]
		require.Equal(t, p.readable(dataset), within(dataset, []string{root}))
		if p.readable(dataset) {
			require.True(t, dataset == root || strings.HasPrefix(dataset, root+"/"))
			require.NotContains(t, strings.Split(dataset, "/"), "..") // "0.." is a valid name
		}
		if strings.ContainsAny(grant, " ") {
			return // quoted by the writer of authorized_keys
		}
		words, err := shellquote.Split(p.String())
		require.NoError(t, err)
		var grants, peers []string
		for i := 0; i+1 < len(words); i++ {
			switch words[i] {
			case "--allow":
				grants = append(grants, words[i+1])
			case "--peer":
				peers = append(peers, words[i+1])
			}
		}
		again, err := Parse(grants, peers, strings.Contains(p.String(), "--append-only"))
		require.NoError(t, err, p.String())
		require.Equal(t, p, again)
	})
}
