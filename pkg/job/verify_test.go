package job

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

func TestAppeared(t *testing.T) {
	t.Parallel()
	list := func(names string) *zfs.Listing {
		l := &zfs.Listing{Root: "vault/a"}
		for _, n := range strings.Fields(names) {
			l.Datasets = append(l.Datasets, &zfs.Dataset{Name: n, Versions: make([]zfs.Version, 1)})
		}
		return l
	}
	for _, tt := range []struct{ why, before, planned, after, want string }{
		{"as planned", "", "vault/a vault/a/b", "vault/a vault/a/b", ""},
		{"parents", "vault/a", "vault/a/b/c/d", "vault/a vault/a/b vault/a/b/c vault/a/b/c/d", ""},
		{"there before", "vault/a vault/a/old", "vault/a", "vault/a vault/a/old", ""},
		{"a child", "vault/a", "vault/a", "vault/a vault/a/evil", "vault/a/evil"},
		{"below a new one", "", "vault/a vault/a/b", "vault/a vault/a/b vault/a/b/x vault/a/b0", "vault/a/b/x vault/a/b0"},
	} {
		p := &plan.Plan{}
		for _, n := range strings.Fields(tt.planned) {
			p.Datasets = append(p.Datasets, &plan.Dataset{Target: n})
		}
		created := list("vault/a/created")
		created.Datasets[0].Versions = nil
		require.Empty(t, unexpectedDatasets(p, list(""), created))
		require.Equal(t, tt.want, strings.Join(unexpectedDatasets(p, list(tt.before), list(tt.after)), " "), tt.why)
	}
}
