package meet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
)

// stage is one that lived for so many seconds, and was busy for some of them.
func stage(name string, life, busy int) transfer.Stage {
	return transfer.Stage{Name: name, Busy: time.Duration(busy) * time.Second, WaitIn: time.Duration(life-busy) * time.Second}
}

// What limits a transfer is told of the last seconds, as its rate is: an hour of a
// slow source says nothing of what is slow now.
func TestLimitOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	var seen Progress
	v := &view{limit: func(limit string) string { return limit }, report: func(p Progress) { seen = p }}
	v.sent(transfer.Progress{Stages: []transfer.Stage{stage(transfer.StageRead, 3600, 3500)}})
	v.received(transfer.Progress{Bytes: 1000, Stages: []transfer.Stage{stage(transfer.StageWrite, 3600, 100)}})
	require.Equal(t, transfer.LimitSource, seen.LimitedBy, "at first all that was")
	time.Sleep(2 * time.Millisecond)
	v.sent(transfer.Progress{Stages: []transfer.Stage{stage(transfer.StageRead, 3604, 3500)}})
	v.received(transfer.Progress{Bytes: 1400, Stages: []transfer.Stage{stage(transfer.StageWrite, 3604, 104)}})
	require.Equal(t, transfer.LimitTarget, seen.LimitedBy)
	require.Positive(t, seen.Rate)
}
