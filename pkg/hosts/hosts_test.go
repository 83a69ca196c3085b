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

// beta is a host that answers as long as its line holds.
type beta struct {
	FullHost
	cut     error
	text    string // of its capture
	facts   int    // how often they were asked for
	pings   int
	closing error
	closed  int
	mute    bool          // it says nothing
	slow    time.Duration // to close
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

func (b *beta) Capture(_ context.Context, brief bool) ([]byte, error) {
	if !brief {
		return nil, errors.New("a job has no time for more")
	}
	return []byte(b.text), b.cut
}

func (b *beta) RTT() time.Duration { return time.Millisecond }
func (b *beta) Close() error       { time.Sleep(b.slow); b.closed++; return b.closing }

// opener leads to its sites, one after the other, as long as it has any; nil is
// a host that refuses.
type opener struct {
	sites []*beta
	lines []Address
	slow  time.Duration
}

func (o *opener) Open(_ context.Context, l Address) (Host, error) {
	time.Sleep(o.slow)
	o.lines = append(o.lines, l)
	var st *beta
	if len(o.sites) > 0 {
		st, o.sites = o.sites[0], o.sites[1:]
	}
	if st == nil {
		return nil, fault.Failf("try it by hand", "%s: connection refused", l.Host)
	}
	return st, nil
}

func (o *opener) Relay(_ context.Context, l Address, address string, _ func(error)) (string, error) {
	return l.Host + " " + address, nil
}

func noOp(Host) error { return nil }

// Who asks for a host by the same way gets the same one, open once.
func TestAHostIsReachedOnce(t *testing.T) {
	t.Parallel()
	o := &opener{sites: []*beta{{}, {closing: errors.New("ssh ended with 1")}}}
	s := New(o)
	plain := &transport.Settings{Wire: transport.NC, RSH: "ssh -p 2", NoBootstrap: true}
	require.Same(t, s.Get("beta", &transport.Settings{Wire: "tls", Streams: 2}), s.Get("beta", &transport.Settings{}), "what else a way says does not matter")
	require.NotSame(t, s.Get("beta", &transport.Settings{}), s.Get("beta", plain))
	require.Same(t, s.Get("", &transport.Settings{}), s.Get("", plain))
	require.Empty(t, o.lines)
	for range 2 {
		require.NoError(t, s.Get("beta", &transport.Settings{}).Do(t.Context(), noOp))
		require.NoError(t, s.Get("beta", plain).Do(t.Context(), noOp))
	}
	require.Equal(t, []Address{{Host: "beta"}, {Host: "beta", RSH: "ssh -p 2", NoBootstrap: true, Plain: true}}, o.lines)
	require.Equal(t, []string{"beta", "local"}, []string{s.Get("beta", plain).Label(), s.Get("", plain).Label()})
	to, err := s.Get("beta", plain).Relay(t.Context(), "127.0.0.1:7", nil)
	require.NoError(t, err)
	require.Equal(t, "beta 127.0.0.1:7", to)
	require.EqualError(t, s.Close(), "ssh ended with 1")
	require.NoError(t, s.Close())
}

// A host that was never reached is a failure; one that was is lost for now.
func TestAHostIsReachedAnew(t *testing.T) {
	t.Parallel()
	o := &opener{}
	h := New(o).Get("beta", &transport.Settings{})
	err := h.Do(t.Context(), noOp)
	require.NotErrorIs(t, err, ErrLost)
	require.Equal(t, "try it by hand", fault.HintOf(err))
	require.Zero(t, h.RTT())

	first, second := &beta{}, &beta{}
	o.sites = []*beta{first, second}
	cut := fmt.Errorf("beta: %w", ErrLost)
	require.ErrorIs(t, h.Do(t.Context(), func(Host) error { return cut }), ErrLost)
	require.Equal(t, 1, first.closed)
	require.NoError(t, h.Do(t.Context(), func(st Host) error { require.Same(t, second, st); return nil }))
	require.Equal(t, time.Millisecond, h.RTT())
	// What was begun before the connection was made anew does not end the new one.
	require.ErrorIs(t, h.Do(t.Context(), func(Host) error {
		_ = h.Do(t.Context(), func(Host) error { return cut })
		o.sites = []*beta{first}
		require.NoError(t, h.Do(t.Context(), noOp))
		return cut
	}), ErrLost)
	require.Equal(t, []int{1, 1}, []int{first.closed, second.closed})

	_ = h.Do(t.Context(), func(Host) error { return cut })
	err = h.Do(t.Context(), noOp)
	require.ErrorIs(t, err, ErrLost)
	require.ErrorContains(t, err, "connection refused")
	require.Equal(t, "try it by hand", fault.HintOf(err))
}

// Those who wait for the same attempt need not find out for themselves that it
// fails; those who come later do.
func TestAnAttemptIsMadeForAllWhoWait(t *testing.T) {
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

// A connection that ended while nobody used it is noticed before something is
// begun that would be cut short.
func TestAnUnusedConnectionIsAskedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &beta{}, &beta{}
		h := New(&opener{sites: []*beta{first, second}}).Get("beta", &transport.Settings{})
		for range 3 {
			require.NoError(t, h.Do(t.Context(), func(st Host) error { require.Same(t, first, st); return nil }))
		}
		require.Zero(t, first.pings)
		time.Sleep(2 * idleCheckAfter)
		first.cut = fmt.Errorf("beta: %w", ErrLost)
		require.NoError(t, h.Do(t.Context(), func(st Host) error { require.Same(t, second, st); return nil }))
		require.Equal(t, []int{1, 1}, []int{first.pings, first.closed})
	})
}

// A connection that said nothing as long as somebody waited for it is asked again
// by the next one.
func TestASilentConnectionIsNotInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &beta{}, &beta{}
		h := New(&opener{sites: []*beta{first, second}}).Get("beta", &transport.Settings{})
		require.NoError(t, h.Do(t.Context(), noOp))
		time.Sleep(2 * idleCheckAfter)
		first.mute = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, h.Do(ctx, func(Host) error { return ctx.Err() }), context.DeadlineExceeded)
		first.mute, first.cut = false, fmt.Errorf("beta: %w", ErrLost)
		require.NoError(t, h.Do(t.Context(), func(st Host) error { require.Same(t, second, st); return nil }))
	})
}

// While a lost connection is closed, which may take as long as its remote shell,
// nobody else waits.
func TestALostConnectionIsClosedAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(&opener{sites: []*beta{{slow: time.Minute}, {}}}).Get("beta", &transport.Settings{})
		began := time.Now()
		go func() { _ = h.Do(t.Context(), func(Host) error { return ErrLost }) }()
		synctest.Wait()
		require.Zero(t, h.RTT())
		require.NoError(t, h.Do(t.Context(), noOp))
		require.Zero(t, time.Since(began))
		time.Sleep(time.Hour)
	})
}

// What may be done twice is, where the connection is lost meanwhile: on one made
// anew, and not for ever.
func TestWhatMayBeDoneTwiceIs(t *testing.T) {
	t.Parallel()
	for want, ends := range map[string][]error{
		"done after 1":               {nil},
		"done after 2":               {ErrLost, nil},
		ErrLost.Error() + " after 2": {ErrLost, ErrLost},
		"busy after 1":               {errors.New("busy")},
		"busy after 2":               {ErrLost, errors.New("busy")},
	} {
		h := New(&opener{sites: []*beta{{}, {}, {}}}).Get("beta", &transport.Settings{})
		var used []Host
		err := h.Retry(t.Context(), func(st Host) error {
			require.NotContains(t, used, st)
			used = append(used, st)
			return ends[len(used)-1]
		})
		got := "done"
		if err != nil {
			got = err.Error()
		}
		require.Equal(t, want, fmt.Sprint(got, " after ", len(used)))
	}
}

// What resets a connection may refuse the next for a moment. A host that never
// answered is not waited for, nor what was interrupted.
func TestAHostThatWasLostIsWaitedFor(t *testing.T) {
	t.Parallel()
	lose := func(Host) error { return ErrLost }
	for name, tt := range map[string]struct {
		sites []*beta
		lines int
		lost  bool
	}{
		"back at once":     {[]*beta{{}, {}}, 2, false},
		"refuses thrice":   {[]*beta{{}, nil, nil, nil, {}}, 5, false},
		"stays away":       {[]*beta{{}}, 0, true},
		"lost once more":   {[]*beta{{}, nil, {cut: ErrLost}, {}}, 3, true},
		"never was there":  {nil, 1, false},
		"came back before": {[]*beta{nil, {}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &opener{sites: tt.sites}
				h := New(o).Get("beta", &transport.Settings{})
				began, calls := time.Now(), 0
				err := h.Retry(t.Context(), func(st Host) error {
					if calls++; calls == 1 {
						return ErrLost
					}
					return st.(*beta).cut
				})
				if tt.lines > 0 {
					require.Len(t, o.lines, tt.lines)
					require.Less(t, time.Since(began), retryTimeout)
				}
				require.LessOrEqual(t, time.Since(began), retryTimeout)
				require.Equal(t, tt.lost, errors.Is(err, ErrLost), "%v", err)
				require.Equal(t, tt.lost, fault.ClassOf(err) == fault.Interrupted && err != nil, "%v", err)
			})
		})
	}

	ctx, stop := context.WithCancel(t.Context())
	o := &opener{sites: []*beta{{}, {}}}
	require.ErrorIs(t, New(o).Get("beta", &transport.Settings{}).Retry(ctx, func(Host) error { stop(); return ErrLost }), ErrLost)
	require.Len(t, o.lines, 1)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		o := &opener{sites: []*beta{{}}}
		require.ErrorIs(t, New(o).Get("beta", &transport.Settings{}).Retry(ctx, lose), context.DeadlineExceeded)
		require.Len(t, o.lines, 2, "who is told to stop does not wait")
	})
}

// Tries come less and less often, but never more than half a minute apart.
func TestBackoff(t *testing.T) {
	t.Parallel()
	for try, most := range map[int]time.Duration{1: 500 * time.Millisecond, 2: time.Second, 5: 8 * time.Second, 7: 30 * time.Second, 1_000_000: 30 * time.Second} {
		for range 100 {
			d := Backoff(try)
			require.LessOrEqual(t, d, most)
			require.GreaterOrEqual(t, d, most/2)
		}
	}
}

// Facts are asked for once for each connection: a host may have been started
// again between two.
func TestFactsAreAskedForOnce(t *testing.T) {
	t.Parallel()
	first, second := &beta{}, &beta{}
	h := New(&opener{sites: []*beta{first, second}}).Get("beta", &transport.Settings{})
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

// A host that does not tell its files is unknown, not wrong.
func TestSystem(t *testing.T) {
	t.Parallel()
	system := func(b ...*beta) string {
		s := New(&opener{sites: b}).Get("beta", &transport.Settings{}).System(t.Context())
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
