package plan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFeatures(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		missing string
		used    string // feature that the source's pool uses
		source  []string
		want    bool // the plan is refused
	}{
		{"encryption", "encryption", "", []string{encrypted}, true},
		{"raw large blocks", "large_blocks", "large_blocks", []string{encrypted, "recordsize=1048576"}, true},
		{"raw large blocks of a volume", "large_blocks", "large_blocks", []string{encrypted, "volblocksize=262144", "type=volume"}, true},
		{"raw small blocks", "large_blocks", "large_blocks", []string{encrypted, "recordsize=131072"}, false},
		{"plain large blocks are split", "large_blocks", "large_blocks", []string{"recordsize=1048576"}, false},
		{"raw zstd", "zstd_compress", "zstd_compress", []string{encrypted, "compression=zstd-3"}, true},
		{"plain zstd is unpacked", "zstd_compress", "zstd_compress", []string{"compression=zstd"}, false},
		{"large dnodes", "large_dnode", "large_dnode", []string{"dnodesize=auto"}, true},
		{"large dnodes, none in use", "large_dnode", "", []string{"dnodesize=auto"}, false},
		{"legacy dnodes", "large_dnode", "large_dnode", []string{"dnodesize=legacy"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			planFor := func(target string) Plan {
				s := stateOf(dataset(t, "tank/a", "@s,1", tt.source...))
				for f := range s.Source.Pool.Features {
					s.Source.Pool.Features[f] = "enabled"
				}
				s.Source.Pool.Features[tt.used] = "active"
				s.Target.Pool.Features[tt.missing] = target
				if target == "" {
					delete(s.Target.Pool.Features, tt.missing)
				}
				return mustMake(t, request(), s)
			}
			require.Empty(t, planFor("enabled").Conflicts)
			if !tt.want {
				require.Empty(t, planFor("disabled").Conflicts)
				return
			}
			requireConflict(t, planFor("disabled"), FeatureMissing, "beta:vault", tt.missing, "zpool set feature@"+tt.missing+"=enabled vault")
			requireConflict(t, planFor(""), FeatureMissing, "upgrade ZFS on beta")
		})
	}
	s := stateOf(dataset(t, "tank/a", "@s,1", encrypted))
	s.Target.Pool.Features = nil
	require.Empty(t, mustMake(t, request(), s).Conflicts, "unknown features are not judged")
}
