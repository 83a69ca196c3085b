package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/decide"
	"zxfer/pkg/replicate/drill"
	"zxfer/pkg/replicate/retention"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/replicate/status"
	"zxfer/pkg/size"
	"zxfer/pkg/transport"
	"zxfer/pkg/zfs"
)

// pause pauses the job until a time, or until resume if it is zero.
func (r *replica) pause(until time.Time, transfersOnly bool) {
	s, err := statedir.Open(r.dir, "j")
	require.NoError(r.t, err)
	require.NoError(r.t, s.SavePause(&decide.Pause{Since: time.Unix(r.now, 0).UTC(), Until: until, TransfersOnly: transfersOnly, Reason: "new switch"}))
}

// scheduled runs the job as a timer does.
func (r *replica) scheduled(t *testing.T) (*statedir.Run, error) {
	t.Helper()
	run := r.runner(t)
	run.Scheduled = true
	return run.Run(t.Context(), r.job, true)
}

// TestPausedRun expects that a paused job does nothing, even if its state is damaged, and that
// the first run after the end sends what is new.
func TestPausedRun(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}})
	alerted := filepath.Join(t.TempDir(), "alerted")
	r.job.Alert = &replicate.Hook{Command: []string{"/bin/touch", alerted}}
	r.run(t)
	end := time.Unix(r.now, 0).Add(3 * time.Hour)
	r.pause(end, false)
	before := r.state()
	state, err := os.ReadFile(filepath.Join(r.dir, "j", "state.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "state.json"), []byte("{"), 0o600))
	for range 2 {
		r.now += 3600
		run, err := r.scheduled(t)
		require.NoError(t, err)
		require.True(t, run.Skipped)
		require.True(t, run.Succeeded())
		require.Contains(t, run.Paused, "new switch")
		_, err = r.runner(t).Run(t.Context(), r.job, true)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		require.Equal(t, "to end the pause: zxfer replicate resume j\nto run once in spite of it: zxfer replicate run --ignore-pause j", fault.HintOf(err))
		_, err = r.runner(t).Prune(t.Context(), r.job, false, false)
		require.Equal(t, fault.Refused, fault.ClassOf(err))
		_, err = drill.Run(t.Context(), r.runner(t).Env, r.job, drill.Options{})
		require.Equal(t, fault.Refused, fault.ClassOf(err))
	}
	require.NoFileExists(t, alerted)
	require.Equal(t, before, r.state())
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "state.json"), state, 0o600))
	log, err := statedir.Peek(r.dir, "j").Runs(9)
	require.NoError(t, err)
	require.Len(t, log, 3)
	require.False(t, log[0].Skipped)

	ignoring := r.runner(t)
	ignoring.IgnorePause = true
	run, err := ignoring.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[0].Sent)

	r.now = end.Unix()
	run, err = r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[0].Sent, "the pause has ended")
	require.Empty(t, run.Paused)
}

// TestDamagedPause expects that a run fails if it does not know whether the job is paused.
func TestDamagedPause(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{})
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "pause.json"), []byte("{"), 0o600))
	_, err := r.scheduled(t)
	require.ErrorContains(t, err, "cannot read the pause")
	require.Equal(t, fault.Failed, fault.ClassOf(err))
	js := r.status(t)
	require.Equal(t, status.Unknown, js.State)
	require.Contains(t, js.Error, "cannot read the pause")
}

// TestTransfersPaused pauses transfers for many runs. It expects that the source is snapshotted and
// pruned, that no operation reaches the target, and that the run after the pause sends an increment.
func TestTransfersPaused(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Retention: &retention.Grid{Last: 2}})
	r.run(t)
	base, copied := r.names("src"), r.names("dst/copy")
	require.Equal(t, base, copied)
	r.pause(time.Time{}, true)
	r.away = "dst"
	for range 6 {
		r.now += 3600
		run, err := r.scheduled(t)
		require.NoError(t, err)
		require.Equal(t, outcome.Done, run.Outcome)
		require.Equal(t, 2, run.Snapshots)
		require.Contains(t, run.Paused, "transfers paused until resume")
		require.Equal(t, run.Paused, run.Targets[0].Paused)
		require.Empty(t, run.Targets[0].Error)
		require.Empty(t, run.Damaged)
		require.False(t, r.status(t).Late)
		require.False(t, r.status(t).Failed)
	}
	require.Equal(t, copied, r.names("dst/copy"))
	require.Equal(t, append(base, "s20261101-1300", "s20261101-1400"), r.names("src"), "the incremental source and two more")
	js := r.status(t)
	require.True(t, js.Pause.TransfersOnly)
	require.Equal(t, "new switch", js.Pause.Reason)

	r.away, r.now = "", r.now+3600
	s := statedir.Peek(r.dir, "j")
	p, err := s.Pause()
	require.NoError(t, err)
	p.Until = time.Unix(r.now, 0)
	require.NoError(t, s.SavePause(p))
	run, err := r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[0].Sent)
	for _, d := range run.Targets[0].Datasets {
		require.Zero(t, d.Full, "an increment")
	}
	require.Equal(t, []string{"s20261101-1400", "s20261101-1500"}, r.names("src"))
	require.Equal(t, []string{"s20261101-1400", "s20261101-1500"}, r.names("dst/copy"))
}

func rate(n size.Size) *size.Size { return &n }

// closed returns transfer options with a closed window, in minutes of the local day.
func closed(from, to transport.TimeOfDay) *replicate.Transfer {
	return &replicate.Transfer{Settings: transport.Settings{BandwidthWindows: []transport.BandwidthWindow{{From: from, To: to, Bandwidth: rate(0)}}}}
}

// at sets the host's clock to a local time of day.
func (r *replica) at(hour, minute, second int) {
	r.now = time.Date(2026, 11, 2, hour, minute, second, 0, time.Local).Unix()
}

// TestClosedWindow expects that a closed window stops the transfers to its target only.
func TestClosedWindow(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Targets: []replicate.Target{{Name: "night", To: "far/copy", Transfer: closed(480, 1080)}}})
	r.at(9, 0, 0)
	run, err := r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, outcome.Done, run.Outcome)
	require.Empty(t, run.Paused)
	require.Equal(t, 2, run.Targets[0].Sent)
	require.Equal(t, "no transfers until 18:00 (bandwidth_window)", run.Targets[1].Paused)
	require.Equal(t, []status.ClosedWindow{{To: "night", Until: time.Unix(r.now, 0).UTC().Add(9 * time.Hour)}}, r.status(t).Windows)
	require.Empty(t, r.datasets("far")[1:])
	r.job.Schedule = "hourly"
	require.False(t, r.status(t).Late, "the first run was in the window")
	r.job.Schedule = ""

	r.at(18, 0, 0)
	run, err = r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[1].Sent)
	require.Empty(t, r.status(t).Windows)

	r.at(19, 0, 0)
	r.at(9, 0, 0)
	r.now += 24 * 3600
	ignoring := r.runner(t)
	ignoring.Scheduled, ignoring.IgnorePause = true, true
	run, err = ignoring.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[1].Sent)
}

// TestWindowCloses expects that a closing window interrupts a stream, that the run succeeds, and
// that the next one sends the rest.
func TestWindowCloses(t *testing.T) {
	t.Parallel()
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Take: "s%Y%m%d-%H%M"}, Schedule: "hourly"})
	r.job.Targets[0].Transfer = closed(480, 1080)
	around, blocked := r.Around, make(chan bool, 9)
	r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
		if op == zfs.OpReceive && len(blocked) == 0 {
			blocked <- true
			<-ctx.Done() // the window closes
			return ctx.Err()
		}
		return around(ctx, op, names, do)
	}
	r.at(7, 59, 59)
	run, err := r.scheduled(t)
	require.NoError(t, err)
	require.Len(t, blocked, 1)
	require.Equal(t, outcome.Done, run.Outcome, run.FirstError())
	require.Contains(t, run.Targets[0].Paused, "until 18:00")
	require.Empty(t, run.Failures())
	require.Zero(t, run.Targets[0].Failed)
	require.Positive(t, run.Targets[0].Held)
	js := r.status(t)
	require.False(t, js.Failed)
	require.Empty(t, js.Problems)

	r.at(18, 0, 0)
	run, err = r.scheduled(t)
	require.NoError(t, err)
	require.Equal(t, 2, run.Targets[0].Sent)
	require.Empty(t, run.Targets[0].Paused)
	require.Equal(t, r.names("src"), r.names("dst/copy"))
}

// TestWindowKeepsFailures expects that an error that the window does not explain counts.
func TestWindowKeepsFailures(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&windowClosed{time.Now()})
	b := &batch{err: errors.New("no space left on device"), result: &send.BatchResult{}}
	b.hold(ctx)
	require.Error(t, b.err)
	require.False(t, b.isHeld(b.err))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	b.err = fault.Interrupt("", context.Canceled)
	b.hold(stopped)
	require.Error(t, b.err, "a signal, not the window")
}
