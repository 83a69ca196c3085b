package job

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/meet"
	"zxfer/pkg/plan"
	"zxfer/pkg/site"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

func TestTransient(t *testing.T) {
	t.Parallel()
	for _, err := range []error{wire.ErrCut, site.ErrLost, &zfs.Error{Kind: zfs.Killed}, &zfs.Error{Kind: zfs.Busy}, &zfs.Error{Kind: zfs.Incomplete}} {
		require.True(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
	for _, err := range []error{wire.ErrTampered, wire.ErrDial, &zfs.Error{Kind: zfs.NoSpace}, &zfs.Error{Kind: zfs.Permission}, context.Canceled,
		errors.Join(wire.ErrTampered, wire.ErrCut)} {
		require.False(t, transient(fmt.Errorf("x: %w", err)), "%v", err)
	}
}

// An error that no further try changes is not tried again, nor called an
// interruption: the target has a snapshot that no plan knew of, twice; a conflict
// came up since.
func TestWhatNoTryCuresIsAFailure(t *testing.T) {
	t.Parallel()
	retries := func(s *Send) { s.Retries, s.RetryFor, s.Plan.Recursive = 6, time.Millisecond, false }
	w := newWorld(map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil, "dst/a": {}})
	w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions[:1:1]
	tries := 0
	w.refuse = func(string) error { tries++; return &zfs.Error{Kind: zfs.Exists, Op: zfs.OpReceive, Subject: "dst/a"} }
	_, err := RunSend(t.Context(), request(retries), hosts.New(w), silent{})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.Exists})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 2, tries)

	tries = 0
	w.refuse = func(string) error {
		tries++
		w.datasets["dst/a"].Versions = append(w.datasets["dst/a"].Versions, zfs.Version{Kind: zfs.Snapshot, Name: "theirs", GUID: 99, CreateTXG: 99})
		return wire.ErrCut
	}
	_, err = RunSend(t.Context(), request(retries), hosts.New(w), silent{})
	require.ErrorContains(t, err, "@theirs")
	require.Equal(t, fault.Failed, fault.ClassOf(err), "%v", err)
	require.Equal(t, 1, tries)
}

// Another command that resumed the same stream was faster: the state that the
// token stood for is gone, and all is there.
func TestARivalCompletesTheStream(t *testing.T) {
	t.Parallel()
	w := newWorld(map[string][]string{"src": nil, "src/a": {"x", "y"}, "dst": nil, "dst/a": {}})
	w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions[:1:1]
	w.refuse = func(string) error {
		w.datasets["dst/a"].Versions = w.datasets["src/a"].Versions
		return &zfs.Error{Kind: zfs.BadToken, Op: zfs.OpReceive, Subject: "dst/a"}
	}
	_, err := RunSend(t.Context(), request(func(s *Send) { s.Retries, s.RetryFor, s.Plan.Recursive = 6, time.Millisecond, false }), hosts.New(w), silent{})
	require.NoError(t, err)
}

// Retries are counted anew only when the target kept something.
func TestAdvanced(t *testing.T) {
	t.Parallel()
	step := func(guid, done uint64) plan.Step { return plan.Step{ToGUID: guid, Done: done} }
	with := func(steps ...plan.Step) *plan.Dataset { return &plan.Dataset{Steps: steps} }
	require.False(t, advanced(with(step(1, 0)), with(step(1, 0))))
	require.False(t, advanced(with(step(1, 10)), with(step(1, 10))))
	require.True(t, advanced(with(step(1, 0)), with(step(1, 10))), "more of the stream is there")
	require.True(t, advanced(with(step(1, 0), step(2, 0)), with(step(2, 0))), "the next stream is due")
	require.True(t, advanced(with(step(1, 0)), with()), "nothing is left")
}

func TestJoinFailures(t *testing.T) {
	t.Parallel()
	cut := fault.Interrupt("the same command resumes", errors.New("cut"))
	failed := fault.Failf("make room", "no space")
	require.NoError(t, joinFailures(nil))
	require.Equal(t, fault.Interrupted, fault.ClassOf(joinFailures([]error{cut})))
	require.Equal(t, fault.Interrupted, fault.ClassOf(joinFailures([]error{cut, cut})))
	err := joinFailures([]error{cut, failed})
	require.Equal(t, fault.Failed, fault.ClassOf(err), "a failure is worse than what resumes")
	require.ErrorContains(t, err, "no space")
}

func TestOutcome(t *testing.T) {
	t.Parallel()
	empty, some := &plan.Plan{}, &plan.Plan{Datasets: []*plan.Dataset{{Steps: make([]plan.Step, 1)}}}
	tests := []struct {
		err    error
		dryRun bool
		plan   *plan.Plan
		want   string
	}{
		{nil, false, some, "done"}, {nil, true, some, "planned"}, {nil, false, empty, "up-to-date"},
		{fault.Refusef("", "no"), false, nil, "refused"}, {fault.Interrupt("", errors.New("x")), false, some, "interrupted"},
		{errors.New("x"), false, nil, "failed"},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, outcome(tt.err, tt.dryRun, tt.plan))
	}
}

// What ^C or a rate of zero leaves must not divide or underflow.
// silent is a Reporter that needs no output.
type silent struct{}

func (silent) Log(string)                      {}
func (silent) Planned(*Report)                 {}
func (silent) Started(int, *plan.Dataset, int) {}
func (silent) Progress(int, meet.Progress)     {}
func (silent) Finished(int, *StepResult)       {}

func TestPersist(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("beta: %w", site.ErrLost)
	tests := []struct {
		name  string
		errs  []error // of each call; then nil
		calls int
		class fault.Class
	}{
		{"well", nil, 1, 0},
		{"lost once", []error{lost}, 2, 0},
		{"lost for good", []error{lost, lost, lost, lost}, 3, fault.Interrupted},
		{"another failure", []error{errors.New("diverged")}, 1, fault.Failed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := &sender{req: Send{Retries: 2, RetryFor: time.Millisecond}, rep: silent{}}
			calls := 0
			err := s.persist(t.Context(), func(context.Context) error {
				calls++
				if calls <= len(tt.errs) {
					return tt.errs[calls-1]
				}
				return nil
			})
			require.Equal(t, tt.calls, calls)
			if tt.class == 0 {
				require.NoError(t, err)
				return
			}
			require.Equal(t, tt.class, fault.ClassOf(err))
		})
	}
}
