package job

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
)

// exchanges is a host that records the exchanges of a queue. answer returns the errors of the requests, by
// their first arguments.
type exchanges struct {
	hosts.Host
	answer func(names []string) []error

	mu  sync.Mutex
	all [][]string
}

func (e *exchanges) Run(ctx context.Context, r *hosts.Request) error {
	return e.RunInOrder(ctx, []*hosts.Request{r})[0]
}

func (e *exchanges) RunInOrder(_ context.Context, requests []*hosts.Request) []error {
	var names []string
	for _, r := range requests {
		names = append(names, r.Args.([]string)[0])
	}
	e.mu.Lock()
	e.all = append(e.all, names)
	e.mu.Unlock()
	return e.answer(names)
}

// TestQueue runs ten requests that wait for the only turn.
func TestQueue(t *testing.T) {
	t.Parallel()
	failed := errors.New("failed")
	succeed := func(names []string) []error { return make([]error, len(names)) }
	names := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for name, tt := range map[string]struct {
		parallel, bytes int
		answer          func(names []string) []error
		want            [][]string
		failed          []string
	}{
		"together":           {1, 100, succeed, [][]string{names}, nil},
		"many bytes":         {1, maxExchangeBytes / 4, succeed, [][]string{names[:4], names[4:8], names[8:]}, nil},
		"too many bytes":     {5, 2 * maxExchangeBytes, succeed, [][]string{{"0"}, {"1"}, {"2"}, {"3"}, {"4"}, {"5"}, {"6"}, {"7"}, {"8"}, {"9"}}, nil},
		"spread over turns":  {4, 100, succeed, [][]string{names[:3], names[3:5], names[5:7], {"7"}, {"8"}, {"9"}}, nil},
		"one request failed": {1, 100, failing("3", failed), [][]string{names, names[4:]}, []string{"3"}},
		"the host runs none": {5, 100, func(names []string) []error {
			errs := make([]error, len(names))
			for i := range errs {
				errs[i] = hosts.ErrNotStarted
			}
			return errs
		}, [][]string{{"0", "1"}, {"1", "2"}, {"2", "3"}, {"3", "4"}, {"4", "5"}, {"5"}, {"6"}, {"7"}, {"8"}, {"9"}}, names},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			on := &exchanges{answer: tt.answer}
			slots := make(chan struct{}, 1)
			gate := func(context.Context) (func(), error) { slots <- struct{}{}; return func() { <-slots }, nil }
			q := newQueue(t.Context(), func(_ context.Context, f func(hosts.Host) error) error { return f(on) }, tt.parallel, gate)
			release, _ := gate(t.Context()) // until all requests wait
			errs := make([]error, len(names))
			var all sync.WaitGroup
			for i, name := range names {
				one := &queued{hosts.OpDestroy.Request([]string{name}, nil), tt.bytes, make(chan error, 1)}
				q.waiting = append(q.waiting, one)
				all.Go(func() { errs[i] = <-one.err })
			}
			q.mu.Lock()
			q.wake()
			q.mu.Unlock()
			release()
			all.Wait()
			require.Equal(t, tt.want, on.all)
			for i, name := range names {
				require.Equal(t, slices.Contains(tt.failed, name), errs[i] != nil, name)
			}
		})
	}
}

// failing returns an answer in which one request fails.
func failing(which string, err error) func([]string) []error {
	return func(names []string) []error {
		errs := make([]error, len(names))
		for i, name := range names {
			switch {
			case name == which:
				errs[i] = err
			case i > 0 && errs[i-1] != nil:
				errs[i] = hosts.ErrNotStarted
			}
		}
		return errs
	}
}

// TestQueueCanceled expects requests to end with the job, and an error that does not blame an earlier request.
func TestQueueCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	on := &exchanges{answer: func(names []string) []error {
		cancel()
		return failing(names[0], context.Canceled)(names)
	}}
	gate := func(ctx context.Context) (func(), error) { return func() {}, ctx.Err() }
	q := newQueue(ctx, func(ctx context.Context, f func(hosts.Host) error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return f(on)
	}, 1, gate)
	var errs [20]error
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = q.run(hosts.OpDestroy.Request([]string{"x"}, nil), 1) })
	}
	all.Wait()
	for _, err := range errs {
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, hosts.ErrNotStarted)
	}
	for range cap(q.active) {
		_, _ = q.enter(t.Context())
	}
	_, err := q.enter(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

// TestGateEndsWithJob expects that a dataset does not wait for its turn after the job was canceled.
func TestGateEndsWithJob(t *testing.T) {
	t.Parallel()
	gate := (&mover{req: &Send{}}).newGate()
	release, err := gate(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = gate(ctx)
	require.ErrorIs(t, err, context.Canceled)
	release()
	_, err = gate(t.Context())
	require.NoError(t, err)
}

// TestQueueLimits expects that a restricted agent permits all requests of a queue at once, and that many turns
// need no queue.
func TestQueueLimits(t *testing.T) {
	t.Parallel()
	for parallel := range 65 {
		q := newQueue(t.Context(), nil, parallel, nil)
		if parallel > maxInFlight/2 {
			require.Nil(t, q, parallel)
			continue
		}
		require.LessOrEqual(t, max(1, parallel)*q.most, maxInFlight)
		require.Greater(t, q.most, 1)
	}
}
