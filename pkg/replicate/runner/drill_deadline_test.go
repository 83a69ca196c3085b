package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/calendar"
	"zxfer/pkg/replicate/drill"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/zfs"
)

// TestDrillDeadline expects that an endless copy is neither good nor bad, that copies without a result keep
// their state, and that the next drill begins with the others.
func TestDrillDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no clock of the machine
		r, _, _ := drilled(t, &replicate.Drill{})
		_, err := r.drill(t, drill.Options{})
		require.NoError(t, err)
		good := time.Unix(r.now, 0)
		r.now += 3600
		r.job.Drill.Deadline = calendar.Duration(200 * time.Millisecond)
		r.lie = func(files.Query, files.Digest) (files.Digest, error) {
			time.Sleep(300 * time.Millisecond)
			return files.Digest{}, errors.New("cut")
		}
		d, err := r.drill(t, drill.Options{})
		require.ErrorIs(t, err, statedir.ErrDeadline)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
		require.Equal(t, statedir.NotFinished, d.Outcome)
		require.Equal(t, "the drill passed its deadline of 200ms", d.Error)
		require.Len(t, d.Copies, 1)
		require.Equal(t, "src", d.Copies[0].Source)
		require.Equal(t, statedir.NotFinished, d.Copies[0].DisplayOutcome())
		require.Contains(t, d.Copies[0].Hint, "drill.deadline")
		st := r.currentStatus()
		require.Equal(t, statedir.NotFinished, st.State)
		require.Equal(t, 2, st.Drill.Copies)
		require.Equal(t, good.UTC(), st.Drill.Good.UTC())
		require.Len(t, st.Drill.NotGood, 1)
		text, err := status.Metrics(&replicate.File{Jobs: []replicate.Job{*r.job}}, r.dir, time.Unix(r.now, 0))
		require.NoError(t, err)
		require.Contains(t, string(text), `zxfer_replicate_drill_good{job="j",source="src",target="t"} 0`)

		r.job.Drill.Deadline, r.lie = 0, nil
		d, err = r.drill(t, drill.Options{})
		require.NoError(t, err)
		require.Len(t, d.Copies, 2)
		require.Equal(t, "src", d.Copies[1].Source, "what was not finished comes last")
		require.Equal(t, status.OK, r.currentStatus().State)
	})
}

// TestDrillDeadlineBeforeCopies expects the outcome of a passed deadline if it ends a listing. The error of the
// listing is a consequence.
func TestDrillDeadlineBeforeCopies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := drilled(t, &replicate.Drill{Deadline: calendar.Duration(200 * time.Millisecond)})
		r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
			if op == zfs.OpList && slices.Contains(names, "dst/copy") {
				<-ctx.Done()
				return fmt.Errorf("zfs get: %w", context.Canceled)
			}
			return do()
		}
		d, err := r.drill(t, drill.Options{})
		require.ErrorIs(t, err, statedir.ErrDeadline)
		require.Equal(t, fault.Failed, fault.ClassOf(err))
		require.Equal(t, statedir.NotFinished, d.Outcome)
		require.Equal(t, "the drill passed its deadline of 200ms", d.Error)
	})
}

// TestDrillDeadlineKeepsFinding expects that a difference that was found remains one after the deadline.
func TestDrillDeadlineKeepsFinding(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no clock of the machine
		r, _, _ := drilled(t, &replicate.Drill{Deadline: calendar.Duration(200 * time.Millisecond)})
		r.lie = func(files.Query, files.Digest) (files.Digest, error) {
			time.Sleep(300 * time.Millisecond)
			return files.Digest{}, nil
		}
		d, err := r.drill(t, drill.Options{})
		require.ErrorContains(t, err, "its files differ from")
		require.Equal(t, outcome.Failed, d.Outcome)
		require.Len(t, d.Copies, 1)
	})
}
