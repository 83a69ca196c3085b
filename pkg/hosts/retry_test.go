package hosts

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/transport"
)

// TestIdempotentCallIsRetried expects that if the connection is lost, an idempotent call is retried
// once on a new connection.
func TestIdempotentCallIsRetried(t *testing.T) {
	t.Parallel()
	for want, ends := range map[string][]error{
		"done after 1":               {nil},
		"done after 2":               {ErrLost, nil},
		ErrLost.Error() + " after 2": {ErrLost, ErrLost},
		"busy after 1":               {errors.New("busy")},
		"busy after 2":               {ErrLost, errors.New("busy")},
	} {
		h := New(&opener{next: []*beta{{}, {}, {}}}).Get("beta", &transport.Settings{})
		var used []Host
		err := h.Retry(t.Context(), func(on Host) error {
			require.NotContains(t, used, on)
			used = append(used, on)
			return ends[len(used)-1]
		})
		got := "done"
		if err != nil {
			got = err.Error()
		}
		require.Equal(t, want, fmt.Sprint(got, " after ", len(used)))
	}
}

// TestRetryWaitsForLostHost expects Retry to wait for a host that was reached before, unless
// it is canceled. After a reset, the host may refuse connections for a moment.
func TestRetryWaitsForLostHost(t *testing.T) {
	t.Parallel()
	lose := func(Host) error { return ErrLost }
	for name, tt := range map[string]struct {
		next  []*beta
		lines int
		lost  bool
	}{
		"reachable immediately": {[]*beta{{}, {}}, 2, false},
		"refuses three times":   {[]*beta{{}, nil, nil, nil, {}}, 5, false},
		"remains unreachable":   {[]*beta{{}}, 0, true},
		"lost again":            {[]*beta{{}, nil, {cut: ErrLost}, {}}, 3, true},
		"never reached":         {nil, 1, false},
		"reconnected before":    {[]*beta{nil, {}}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &opener{next: tt.next}
				h := New(o).Get("beta", &transport.Settings{})
				began, calls := time.Now(), 0
				err := h.Retry(t.Context(), func(on Host) error {
					if calls++; calls == 1 {
						return ErrLost
					}
					return on.(*beta).cut
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
	o := &opener{next: []*beta{{}, {}}}
	require.ErrorIs(t, New(o).Get("beta", &transport.Settings{}).Retry(ctx, func(Host) error { stop(); return ErrLost }), ErrLost)
	require.Len(t, o.lines, 1)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		o := &opener{next: []*beta{{}}}
		require.ErrorIs(t, New(o).Get("beta", &transport.Settings{}).Retry(ctx, lose), context.DeadlineExceeded)
		require.Len(t, o.lines, 2, "a cancelled caller does not wait")
	})
}
