package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/finding"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/ends"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/probe"
	"zxfer/pkg/sysinfo"
	"zxfer/pkg/transport"
)

// TestPoolsWithKnownCopies expects that a pool has known copies if a job names it on that host
// as source or as copy.
func TestPoolsWithKnownCopies(t *testing.T) {
	t.Parallel()
	d := Request{Copies: []heal.Copy{{Source: endpoint.Endpoint{Name: "tank/home"}, Target: endpoint.Endpoint{Host: "backup1", Name: "vault/home"}}}}
	for host, want := range map[string][]string{"": {"tank", "", ""}, "backup1": {"", "backup1:vault", ""}, "backup2": {"", "", ""}} {
		pools := []sysinfo.Pool{{Name: "tank"}, {Name: "vault"}, {Name: "other"}}
		d.markKnownPools(pools, host)
		for i, p := range pools {
			require.Equal(t, want[i], p.Known, "%s on %q", p.Name, host)
		}
	}
}

// TestGrantListsForbiddenChecks expects that a check counts as forbidden by its cause, whatever its text says.
func TestGrantListsForbiddenChecks(t *testing.T) {
	t.Parallel()
	at := hosts.New(nil)
	d := &doctor{ends: ends.New(at, endpoint.Endpoint{}, endpoint.Endpoint{Host: "beta"}, &transport.Settings{}), report: &Report{
		Findings: []finding.Finding{
			{ID: "mounts", Host: "beta", Unchecked: true, Summary: "anything"}, {ID: "space", Host: "beta", Summary: "not checked: yet"}, {ID: "memory", Host: "local", Unchecked: true}},
		Ceilings: []probe.Ceiling{
			{ID: "link", Host: "local", Peer: "beta", Skipped: "anything", Forbidden: true}, {ID: "target-write", Host: "beta", Skipped: hosts.ErrForbidden.Error()}},
	}}
	require.Empty(t, d.grants())
	d.ends.Target.Denied, d.ends.Target.Grant = "forbidden", "beta: this key may: --allow receive=vault"
	require.Equal(t, []Grant{{Host: "beta", Permissions: "--allow receive=vault", Permitted: []string{"space", "target-write"}, Forbidden: []string{"mounts", "link"}}}, d.grants())
}
