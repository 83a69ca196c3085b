package report

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
)

// TestHealAmounts expects that plan and result name the amounts that the copy's host reads and sends.
func TestHealAmounts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		d             job.HealedDataset
		planned, done string
	}{
		{job.HealedDataset{Bytes: 25 << 20, Blocks: 1, SendBytes: 128 << 10, Sent: 130 << 10, Read: 25 << 20},
			"1 damaged block, about 128 KiB, for which the copy's host reads about 25 MiB", ": sent 130 KiB for 1 damaged block, read 25 MiB from the copy"},
		{job.HealedDataset{Bytes: 25 << 20, Blocks: 1200, SendBytes: 20 << 20, Sent: 20 << 20, Read: 25 << 20},
			"1,200 damaged blocks, about 20 MiB, for which the copy's host reads about 25 MiB", ": sent 20 MiB for 1,200 damaged blocks, read 25 MiB from the copy"},
		{job.HealedDataset{Bytes: 25 << 20, Blocks: 2, Whole: "zxfer does not run on old", Sent: 25 << 20, Read: 25 << 20},
			"2 damaged blocks out of a stream of about 25 MiB (zxfer does not run on old)", ": sent 25 MiB for 2 damaged blocks, read 25 MiB from the copy"},
		{job.HealedDataset{Bytes: 25 << 20, Whole: "cannot read the error log", Sent: 25 << 20, Read: 25 << 20},
			"a stream of about 25 MiB (cannot read the error log)", ": sent 25 MiB (cannot read the error log)"},
		{job.HealedDataset{Bytes: 25 << 20}, "a stream of about 25 MiB", ""},
	} {
		require.Equal(t, tt.planned, plannedStream(&tt.d))
		require.Equal(t, tt.done, sentAmount(&tt.d))
	}
}
