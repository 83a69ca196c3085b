package preflight

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// planned plans n datasets, and tells how long that took.
func planned(t *testing.T, n int) time.Duration {
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
	p := plan.Make(plan.Request{Source: "tank/a", Target: "vault/a", Recursive: true, CarryProperties: true}, plan.State{
		Source: zfs.Listing{Root: "tank/a", Datasets: source},
		Target: zfs.Listing{Root: "vault/a", Ancestors: []*zfs.Dataset{{Name: "vault", Type: zfs.Filesystem}}},
	})
	took := time.Since(began)
	require.Len(t, p.Datasets, n)
	require.Len(t, p.Notes, 1)
	require.Contains(t, p.Notes[0], fmt.Sprintf("mountpoint of tank/a/000000 and %d more", n-1))
	return took
}

// judged judges a plan of n encrypted datasets whose receive was cut off, and
// tells how long that took.
func judged(t *testing.T, n int) time.Duration {
	t.Helper()
	in := sound()
	in.Plan.Datasets = nil
	for i := range n {
		name := fmt.Sprintf("a/%06d", i)
		in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank/" + name, Target: "vault/" + name, Encrypted: true,
			Discard: "asked for", Steps: []plan.Step{{Kind: plan.Full, Bytes: 1}}})
		in.TargetListing.Datasets = append(in.TargetListing.Datasets, &zfs.Dataset{Name: "vault/" + name, Type: zfs.Filesystem,
			Properties: map[string]zfs.Property{"encryptionroot": {Value: "vault/" + name}, "receive_resume_token": {Value: "1-x"}}})
	}
	began := time.Now()
	found := Send(in)
	took := time.Since(began)
	resumes := 0
	for _, f := range found {
		if f.ID == "resume" {
			resumes++
		}
	}
	require.Equal(t, n, resumes)
	return took
}

// What is looked up for each of many datasets is not looked for among all, by the
// planner as by the checks: eight times as many take about eight times as long, not
// up to 64. A busy machine may hold up one try, not each.
func TestManyDatasets(t *testing.T) { //nolint:paralleltest // it compares times
	for name, took := range map[string]func(*testing.T, int) time.Duration{"planned": planned, "judged": judged} {
		t.Run(name, func(t *testing.T) {
			few, many := took(t, 2500), took(t, 20_000)
			for range 9 {
				if many < 20*few { // the best of many: load makes none faster
					return
				}
				many = min(many, took(t, 20_000))
			}
			require.FailNow(t, "too slow", "%s for 2,500, %s for 20,000", few, many)
		})
	}
}
