package preflight

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// planned returns the planning of n datasets.
func planned(t *testing.T, n int) func() {
	local := func(value string) zfs.Property { return zfs.Property{Value: value, Source: "local"} }
	var source []*zfs.Dataset
	for i := range n {
		source = append(source, &zfs.Dataset{
			Name: fmt.Sprintf("tank/a/%06d", i), Type: zfs.Filesystem, GUID: uint64(i + 1),
			Versions:   []zfs.Version{{Kind: zfs.Snapshot, Name: "x", GUID: uint64(n + i), CreateTXG: 5}},
			Properties: map[string]zfs.Property{"mountpoint": local("/a"), "quota": local("5")},
		})
	}
	state := plan.State{
		Source: zfs.Listing{Root: "tank/a", Datasets: source},
		Target: zfs.Listing{Root: "vault/a", Ancestors: []*zfs.Dataset{{Name: "vault", Type: zfs.Filesystem}}},
	}
	return func() {
		p := plan.Make(plan.Request{Source: "tank/a", Target: "vault/a", Recursive: true, CarryProperties: true}, state)
		require.Len(t, p.Datasets, n)
		require.Len(t, p.Notes, 1)
		require.Contains(t, p.Notes[0], fmt.Sprintf("mountpoint of tank/a/000000 and %d more", n-1))
	}
}

// checkedInput returns the check of a plan of n encrypted datasets whose receive was interrupted.
func checkedInput(t *testing.T, n int) func() {
	in := soundInput()
	in.Plan.Datasets = nil
	for i := range n {
		name := fmt.Sprintf("a/%06d", i)
		in.Plan.Datasets = append(in.Plan.Datasets, &plan.Dataset{Source: "tank/" + name, Target: "vault/" + name, Encrypted: true,
			Discard: "asked for", Steps: []plan.Step{{Kind: plan.Full, Bytes: 1}}})
		in.TargetListing.Datasets = append(in.TargetListing.Datasets, &zfs.Dataset{Name: "vault/" + name, Type: zfs.Filesystem,
			Properties: map[string]zfs.Property{"encryptionroot": {Value: "vault/" + name}, "receive_resume_token": {Value: "1-x"}}})
	}
	return func() {
		resumes := 0
		for _, f := range Send(in) {
			if f.ID == "resume" {
				resumes++
			}
		}
		require.Equal(t, n, resumes)
	}
}

// TestManyDatasets checks that neither the planner nor the checks search all datasets for
// each one.
func TestManyDatasets(t *testing.T) { //nolint:paralleltest // it measures processor time
	for name, prepare := range map[string]func(*testing.T, int) func(){"planned": planned, "judged": checkedInput} {
		t.Run(name, func(t *testing.T) {
			testenv.Linear(t, 1000, func(n int) func() { return prepare(t, n) })
		})
	}
}
