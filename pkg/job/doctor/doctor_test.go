package doctor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/sysinfo"
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
