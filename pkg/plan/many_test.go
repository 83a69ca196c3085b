package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs"
)

// manyDatasets plans n, and tells how long that took.
func manyDatasets(t *testing.T, n int) time.Duration {
	t.Helper()
	local := func(value string) zfs.Property { return zfs.Property{Value: value, Source: "local"} }
	var source []*zfs.Dataset
	for i := range n {
		source = append(source, &zfs.Dataset{
			Name: fmt.Sprintf("tank/a/%06d", i), Type: zfs.Filesystem, GUID: uint64(i + 1),
			Versions:   []zfs.Version{{Kind: zfs.Snapshot, Name: "x", GUID: uint64(n + i), CreateTXG: 5}},
			Properties: map[string]zfs.Property{"mountpoint": local("/a"), "quota": local("5")},
		})
	}
	began := time.Now()
	p := Make(Request{Source: "tank/a", Target: "vault/a", Recursive: true, CarryProperties: true}, State{
		Source: zfs.Listing{Root: "tank/a", Datasets: source},
		Target: zfs.Listing{Root: "vault/a", Ancestors: []*zfs.Dataset{{Name: "vault", Type: zfs.Filesystem}}},
	})
	took := time.Since(began)
	require.Len(t, p.Datasets, n)
	require.Len(t, p.Notes, 1)
	require.Contains(t, p.Notes[0], fmt.Sprintf("mountpoint of tank/a/000000 and %d more", n-1))
	return took
}

// What is looked up for each of many datasets is not looked for among all: eight
// times as many take about eight times as long, not up to 64. A busy machine may
// hold up one try, not each.
func TestManyDatasets(t *testing.T) { //nolint:paralleltest // it compares times
	var few, many time.Duration
	for range 5 {
		few, many = manyDatasets(t, 2500), manyDatasets(t, 20_000)
		if many < 20*few {
			return
		}
	}
	require.FailNow(t, "too slow", "%s for 2,500, %s for 20,000", few, many)
}
