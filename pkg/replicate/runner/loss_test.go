package runner

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/outcome"
	"zxfer/pkg/replicate"
	"zxfer/pkg/replicate/notify"
	"zxfer/pkg/replicate/session"
	"zxfer/pkg/replicate/statedir"
	"zxfer/pkg/zfs"
)

// TestConnectionLostDuringSnapshots expects a run to succeed if the connection is lost while the host takes
// snapshots: before it took them, after, or after a second request.
func TestConnectionLostDuringSnapshots(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		taken []bool // by each request whose connection is lost
		late  bool   // the first request takes them after the second listing
	}{
		{"taken", []bool{true}, false},
		{"not taken", []bool{false}, false},
		{"taken by the second request", []bool{false, true}, false},
		{"taken after the listing", []bool{false}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newReplica(t, snapshotJob())
			r.run(t)
			r.now += 3600
			around, requests := r.Around, 0
			r.Around = func(ctx context.Context, op string, names []string, do func() error) error {
				if op != zfs.OpSnapshot {
					return around(ctx, op, names, do)
				}
				requests++
				if tt.late && requests == 2 {
					require.NoError(t, do())
				}
				if requests > len(tt.taken) {
					return around(ctx, op, names, do)
				}
				if tt.taken[requests-1] {
					require.NoError(t, do())
				}
				return hosts.ErrLost
			}
			run, err := r.runner(t).Run(t.Context(), r.job, true)
			require.NoError(t, err)
			require.Equal(t, outcome.Done, run.Outcome)
			require.Equal(t, 2, run.Snapshots)
			require.Len(t, r.names("src/a"), 2)
			require.Len(t, r.names("dst/copy/a"), 2)
		})
	}
}

// TestStepsAfterInterruptionEnd expects that steps that continue after an interruption end although the host does not
// answer.
func TestStepsAfterInterruptionEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		side, err := session.NewSide(hosts.New(silentHost{}), replicate.SourceSide, "src", &replicate.Transfer{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		st := holdStep("zxfer:j:t", []string{"src@a"})
		st.always = true
		runSteps(ctx, side, []*step{st})
		require.ErrorIs(t, st.err, context.DeadlineExceeded)
		require.Equal(t, alwaysTimeout, time.Since(began))
	})
}

// silentHost opens a host that does not answer.
type silentHost struct{}

func (silentHost) Open(ctx context.Context, _ hosts.Address) (hosts.Host, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestLateNotesAreRecorded expects the notes of hooks, pings and mails after a run in its record and in the state.
func TestLateNotesAreRecorded(t *testing.T) {
	t.Parallel()
	failing := replicate.Hook{Command: []string{"/bin/sh", "-c", "exit 1"}}
	r := newReplica(t, replicate.Job{Snapshots: replicate.Snapshots{Adopt: []string{"s*"}}, After: []replicate.Hook{failing}, Alert: &failing})
	r.job.Notify = &replicate.Notify{Mail: []string{"admin@example.org"}, Sendmail: failing.Command}
	r.snapshot("src", "s0")
	for i, notes := range []int{1, 3} { // a success sends no mail
		r.now += 100
		if i > 0 {
			r.fail(zfs.OpReceive, "dst", errors.New("no space"))
			r.snapshot("src", "s1")
		}
		run, _ := r.run(t)
		require.Len(t, run.Notes, notes, "%v", run.Notes)
		store := statedir.Peek(r.dir, "j")
		log, err := store.Runs(9)
		require.NoError(t, err)
		require.Len(t, log, i+1)
		require.Equal(t, run.Notes, log[i].Notes)
		st, err := store.State()
		require.NoError(t, err)
		require.Equal(t, run.Notes, st.LastRun.Notes)
	}
}

// TestEarlyFailureIsTheLastRun expects a run that failed before it opened the job in the state, so that the status
// shows it. It keeps the data errors of the run before.
func TestEarlyFailureIsTheLastRun(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	r.run(t)
	store := statedir.Peek(r.dir, "j")
	st, err := store.State()
	require.NoError(t, err)
	st.LastRun.Damaged = []*statedir.Damage{{Pool: "src"}}
	require.NoError(t, store.Save(st))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "pause.json"), []byte("{"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "j", "pause.json"), []byte("{"), 0o600))
	r.now += 100
	_, err = r.runner(t).Run(t.Context(), r.job, true)
	require.Error(t, err)
	st, err = store.State()
	require.NoError(t, err)
	require.Equal(t, outcome.Failed, st.LastRun.Outcome)
	require.Equal(t, r.now, st.LastRun.Started.Unix())
	require.Len(t, st.LastRun.Damaged, 1)
	require.Len(t, st.LastRun.Targets, 1)
}

// TestSkippedRunRecordsItsPing expects the failed ping of a run that a pause skipped in its record.
func TestSkippedRunRecordsItsPing(t *testing.T) {
	t.Parallel()
	r := newReplica(t, snapshotJob())
	r.job.Notify = &replicate.Notify{Ping: "http://127.0.0.1:1/x"}
	r.pause(time.Time{}, false)
	by := r.runner(t)
	by.Scheduled, by.PingLimits = true, &notify.Limits{Attempt: time.Second, Total: time.Second, Tries: 1}
	run, err := by.Run(t.Context(), r.job, true)
	require.NoError(t, err)
	require.True(t, run.Skipped)
	require.Len(t, run.Notes, 1)
	log, err := statedir.Peek(r.dir, "j").Runs(9)
	require.NoError(t, err)
	require.Len(t, log, 1)
	require.Equal(t, run.Notes, log[0].Notes)
}
