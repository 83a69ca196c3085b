package preflight

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/plan"
	"zxfer/pkg/zfs"
)

// manyDatasets judges a plan of n encrypted datasets whose receive was cut off,
// and tells how long that took.
func manyDatasets(t *testing.T, n int) time.Duration {
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
