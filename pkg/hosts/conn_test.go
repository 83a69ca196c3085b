package hosts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// beta is a host that works until its connection is cut.
type beta struct {
	Host
	cut      error
	text     string // reply of Capture
	facts    int    // number of calls
	captures int    // number of calls
	pings    int
	closing  error
	closed   int
	mute     bool          // it never replies
	slow     time.Duration // duration of Close
}

func (b *beta) Run(ctx context.Context, r *Request) (err error) {
	switch r.Op.Name() {
	case OpFacts.Name():
		*r.Answer.(*Facts), err = b.Facts(ctx)
	case OpHostFacts.Name():
		*r.Answer.(*Facts), err = b.HostFacts(ctx)
	case OpCapture.Name():
		*r.Answer.(*string), err = b.Capture(ctx, r.Args.(bool))
	}
	return err
}

func (b *beta) Facts(context.Context) (Facts, error) {
	b.facts++
	return Facts{Hostname: "beta"}, b.cut
}

func (b *beta) HostFacts(ctx context.Context) (Facts, error) {
	b.pings++
	if b.mute {
		<-ctx.Done()
		return Facts{}, ctx.Err()
	}
	return Facts{}, b.cut
}

func (b *beta) Capture(_ context.Context, brief bool) (string, error) {
	b.captures++
	if !brief {
		return "", errors.New("a job has no time for more")
	}
	return b.text, b.cut
}

func (b *beta) RTT() time.Duration { return time.Millisecond }

func (b *beta) Close() error { time.Sleep(b.slow); b.closed++; return b.closing }

// opener returns its hosts one after the other. A nil host, or the end of the list, refuses the
// connection.
type opener struct {
	next  []*beta
	lines []Address
	slow  time.Duration
}

func (o *opener) Open(ctx context.Context, l Address) (Host, error) {
	select {
	case <-time.After(o.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o.lines = append(o.lines, l)
	var on *beta
	if len(o.next) > 0 {
		on, o.next = o.next[0], o.next[1:]
	}
	if on == nil {
		return nil, fault.Failf("test the connection", "%s: connection refused", l.Host)
	}
	return on, nil
}

func noOp(Host) error { return nil }

// TestConnectionIsShared expects that calls with the same address share one connection.
func TestConnectionIsShared(t *testing.T) {
	t.Parallel()
	o := &opener{next: []*beta{{}, {closing: errors.New("ssh ended with 1")}}}
	s := New(o)
	plain := &transport.Settings{Wire: transport.NC, RSH: "ssh -p 2", NoBootstrap: true}
	require.Same(t, s.Get("beta", &transport.Settings{Wire: "tls", Streams: 2}), s.Get("beta", &transport.Settings{}), "other transport settings do not matter")
	require.NotSame(t, s.Get("beta", &transport.Settings{}), s.Get("beta", plain))
	require.Same(t, s.Get("", &transport.Settings{}), s.Get("", plain))
	require.Empty(t, o.lines)
	for range 2 {
		require.NoError(t, s.Get("beta", &transport.Settings{}).Do(t.Context(), noOp))
		require.NoError(t, s.Get("beta", plain).Do(t.Context(), noOp))
	}
	require.Equal(t, []Address{{Host: "beta"}, {Host: "beta", RSH: "ssh -p 2", NoBootstrap: true, NC: true}}, o.lines)
	require.Equal(t, []string{"beta", "local"}, []string{s.Get("beta", plain).Label(), s.Get("", plain).Label()})
	require.EqualError(t, s.Close(), "ssh ended with 1")
	require.NoError(t, s.Close())
}

// TestReconnect expects that an error is ErrLost only if the host was reached before.
func TestReconnect(t *testing.T) {
	t.Parallel()
	o := &opener{}
	h := New(o).Get("beta", &transport.Settings{})
	err := h.Do(t.Context(), noOp)
	require.NotErrorIs(t, err, ErrLost)
	require.Equal(t, "test the connection", fault.HintOf(err))
	require.Zero(t, h.RTT())

	first, second := &beta{}, &beta{}
	o.next = []*beta{first, second}
	cut := fmt.Errorf("beta: %w", ErrLost)
	require.ErrorIs(t, h.Do(t.Context(), func(Host) error { return cut }), ErrLost)
	require.Equal(t, 1, first.closed)
	require.NoError(t, h.Do(t.Context(), func(on Host) error { require.Same(t, second, on); return nil }))
	require.Equal(t, time.Millisecond, h.RTT())
	// The loss of an old connection does not close its replacement.
	require.ErrorIs(t, h.Do(t.Context(), func(Host) error {
		_ = h.Do(t.Context(), func(Host) error { return cut })
		o.next = []*beta{first}
		require.NoError(t, h.Do(t.Context(), noOp))
		return cut
	}), ErrLost)
	require.Equal(t, []int{1, 1}, []int{first.closed, second.closed})

	_ = h.Do(t.Context(), func(Host) error { return cut })
	err = h.Do(t.Context(), noOp)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, "test the connection", fault.HintOf(err))
}

// TestConcurrentCallersShareAttempt expects that concurrent callers share a failed attempt. Later
// callers make a new one.
func TestConcurrentCallersShareAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &opener{slow: time.Second}
		h := New(o).Get("beta", &transport.Settings{})
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { require.ErrorContains(t, h.Do(t.Context(), noOp), "connection refused") })
		}
		wg.Wait()
		require.Len(t, o.lines, 1)
		require.Error(t, h.Do(t.Context(), noOp))
		require.Len(t, o.lines, 2)
	})
}

// TestInterruptedCallerDoesNotInterruptOthers expects that a caller that waits for the login of another one connects
// itself if that one is interrupted.
func TestInterruptedCallerDoesNotInterruptOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &opener{slow: time.Second, next: []*beta{{}}}
		h := New(o).Get("beta", &transport.Settings{})
		first, interrupt := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { require.ErrorIs(t, h.Do(first, noOp), context.Canceled) })
		synctest.Wait()
		wg.Go(func() { require.NoError(t, h.Do(t.Context(), noOp)) })
		synctest.Wait()
		interrupt()
		wg.Wait()
		require.Len(t, o.lines, 1)
	})
}

// TestIdleConnectionIsTestedFirst expects that a connection that was lost while idle is detected
// before its next use.
func TestIdleConnectionIsTestedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &beta{}, &beta{}
		h := New(&opener{next: []*beta{first, second}}).Get("beta", &transport.Settings{})
		for range 3 {
			require.NoError(t, h.Do(t.Context(), func(on Host) error { require.Same(t, first, on); return nil }))
		}
		require.Zero(t, first.pings)
		time.Sleep(2 * idleCheckAfter)
		first.cut = fmt.Errorf("beta: %w", ErrLost)
		require.NoError(t, h.Do(t.Context(), func(on Host) error { require.Same(t, second, on); return nil }))
		require.Equal(t, []int{1, 1}, []int{first.pings, first.closed})
	})
}

// TestSilentConnectionIsTestedFirst expects that if a host does not reply before a call's deadline,
// the next call tests the connection first.
func TestSilentConnectionIsTestedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &beta{}, &beta{}
		h := New(&opener{next: []*beta{first, second}}).Get("beta", &transport.Settings{})
		require.NoError(t, h.Do(t.Context(), noOp))
		time.Sleep(2 * idleCheckAfter)
		first.mute = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, h.Do(ctx, func(Host) error { return ctx.Err() }), context.DeadlineExceeded)
		first.mute, first.cut = false, fmt.Errorf("beta: %w", ErrLost)
		require.NoError(t, h.Do(t.Context(), func(on Host) error { require.Same(t, second, on); return nil }))
	})
}

// TestLostConnectionClosesInBackground expects that closing a lost connection, which may take long,
// blocks no other caller.
func TestLostConnectionClosesInBackground(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(&opener{next: []*beta{{slow: time.Minute}, {}}}).Get("beta", &transport.Settings{})
		began := time.Now()
		go func() { _ = h.Do(t.Context(), func(Host) error { return ErrLost }) }()
		synctest.Wait()
		require.Zero(t, h.RTT())
		require.NoError(t, h.Do(t.Context(), noOp))
		require.Zero(t, time.Since(began))
		time.Sleep(time.Hour)
	})
}

// TestFactsAreCached expects that facts are cached for each connection, because a host may
// reboot between two.
func TestFactsAreCached(t *testing.T) {
	t.Parallel()
	first, second := &beta{}, &beta{}
	h := New(&opener{next: []*beta{first, second}}).Get("beta", &transport.Settings{})
	for range 2 {
		f, err := h.Facts(t.Context())
		require.NoError(t, err)
		require.Equal(t, "beta", f.Hostname)
	}
	_ = h.Do(t.Context(), func(Host) error { return ErrLost })
	_, err := h.Facts(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{first.facts, second.facts})
}

// TestSystem expects that if a host does not send its system files, the system is unknown.
func TestSystem(t *testing.T) {
	t.Parallel()
	system := func(b ...*beta) string {
		s := New(&opener{next: b}).Get("beta", &transport.Settings{}).System(t.Context())
		if s == nil {
			return "unknown"
		}
		return s.ZFS
	}
	require.Equal(t, "2.3.9-1", system(&beta{text: "-- sys/module/zfs/version --\n2.3.9-1\n"}))
	require.Equal(t, "unknown", system(&beta{cut: fault.Refusef("", "the agent's policy forbids it")}))
	require.Equal(t, "unknown", system(&beta{text: "-- .. --\n"}), "no archive of files")
	require.Equal(t, "unknown", system())
}

// TestSystemIsAskedOncePerMinute expects an answer to be reused, also a refusal, until it is old or the
// connection was lost.
func TestSystemIsAskedOncePerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		denies, answers := &beta{cut: fault.Refusef("", "the agent's policy forbids it")}, &beta{text: "-- sys/module/zfs/version --\n2.3.9-1\n"}
		h := New(&opener{next: []*beta{denies, answers}}).Get("beta", &transport.Settings{})
		for range 2 {
			require.Nil(t, h.System(t.Context()))
		}
		require.Equal(t, 1, denies.captures)
		_ = h.Do(t.Context(), func(Host) error { return ErrLost })
		for range 2 {
			require.Equal(t, "2.3.9-1", h.System(t.Context()).ZFS)
		}
		require.Equal(t, 1, answers.captures)
		time.Sleep(maxSystemAge)
		h.System(t.Context())
		require.Equal(t, 2, answers.captures)
	})
}
