package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/job/heal"
	"zxfer/pkg/outcome"
	"zxfer/pkg/zfs"
)

// TestHealAmounts expects that plan and result name the amounts that the copy's host reads and sends.
func TestHealAmounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d             heal.Dataset
		planned, done string
	}{
		{heal.Dataset{Bytes: 25 << 20, Blocks: 1, SendBytes: 128 << 10, Sent: 130 << 10, Read: 25 << 20},
			"1 damaged block, about 128 KiB, for which the copy's host reads about 25 MiB", ": sent 130 KiB for 1 damaged block, read 25 MiB from the copy"},
		{heal.Dataset{Bytes: 25 << 20, Blocks: 1200, SendBytes: 20 << 20, Sent: 20 << 20, Read: 25 << 20},
			"1,200 damaged blocks, about 20 MiB, for which the copy's host reads about 25 MiB", ": sent 20 MiB for 1,200 damaged blocks, read 25 MiB from the copy"},
		{heal.Dataset{Bytes: 25 << 20, Blocks: 2, Whole: "zxfer does not run on old", Sent: 25 << 20, Read: 25 << 20},
			"2 damaged blocks out of a stream of about 25 MiB (zxfer does not run on old)", ": sent 25 MiB for 2 damaged blocks, read 25 MiB from the copy"},
		{heal.Dataset{Bytes: 25 << 20, Whole: "cannot read the error log", Sent: 25 << 20, Read: 25 << 20},
			"a stream of about 25 MiB (cannot read the error log)", ": sent 25 MiB (cannot read the error log)"},
		{heal.Dataset{Bytes: 25 << 20}, "a stream of about 25 MiB", ""},
	} {
		require.Equal(t, tt.planned, plannedStream(&tt.d))
		require.Equal(t, tt.done, sentAmount(&tt.d))
	}
}

// TestHealJobText expects the sides of a job in order, with the host of each damaged dataset, and no
// text for a side whose errors are unknown: its error is printed.
func TestHealJobText(t *testing.T) {
	t.Parallel()
	object := func(dataset, outcome, why string) *heal.Object {
		return &heal.Object{DamagedObject: zfs.DamagedObject{Dataset: dataset, Shown: dataset + ":/f"}, Outcome: outcome, Why: why}
	}
	at := func(host, name string) string { return endpoint.Endpoint{Host: host, Name: name}.String() }
	r := &heal.JobReport{Heals: []*heal.Report{
		{At: at("", "tank/home"), Scan: "scrub repaired 0B"},
		{At: at("backup1", "vault/home"), Datasets: []*heal.Dataset{{Dataset: "vault/home/bob", Copy: "tank/home/bob", Healed: true}}, Objects: []*heal.Object{object("vault/home/bob", heal.Healed, "")}},
		{At: at("backup2", "vault/home"), Conclusion: outcome.Conclusion{Outcome: outcome.Failed, Error: "no route to host"}},
		{At: at("backup3", "v/\x1b[2Jhome"), Datasets: []*heal.Dataset{{Dataset: "v/home", Why: "v/home is a clone"}}, Objects: []*heal.Object{object("v/home", heal.NotHealed, "v/home is a clone")}},
	}}
	stdout, stderr := HealJobResult(r)(nil)
	require.Empty(t, stderr)
	require.Equal(t, `tank/home: no known errors (scrub repaired 0B)
backup1:vault/home/bob: blocks were healed from tank/home/bob
  healed      vault/home/bob:/f
v/home: not healed: v/home is a clone
  not healed  v/home:/f
`, stdout)
	for _, side := range r.Heals {
		side.DryRun = true
	}
	r.DryRun = true
	stdout, _ = HealJobResult(r)(nil)
	require.Regexp(t, `(?s)dry run: nothing was changed\n$`, stdout)
	require.NotRegexp(t, `(?s)nothing was changed.*nothing was changed`, stdout)
}
