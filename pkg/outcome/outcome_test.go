package outcome

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

func TestWorst(t *testing.T) {
	t.Parallel()
	order := []string{UpToDate, Planned, Done, Interrupted, Refused, Failed}
	for i, a := range order {
		for j, b := range order {
			require.Equal(t, order[max(i, j)], Worst(a, b))
		}
		require.Equal(t, a, Worst("", a), "a missing outcome is ignored")
	}
	require.Equal(t, Failed, Worst(order...))
}

func TestOf(t *testing.T) {
	t.Parallel()
	for want, errs := range map[string][]error{
		Interrupted: {fault.Interrupt("", errors.New("cut")), context.Canceled, fmt.Errorf("verify: %w", context.Canceled)},
		Refused:     {fault.Refusef("", "no"), fault.Usagef("", "no such name"), fault.Refusef("", "%w", context.Canceled)},
		Failed:      {errors.New("broken"), fault.Failf("", "no space"), context.DeadlineExceeded},
	} {
		for _, err := range errs {
			require.Equal(t, want, Of(err), "%v", err)
		}
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	cut := fault.Interrupt("the same command resumes", errors.New("cut"))
	refused, failed := fault.Refusef("ask", "no"), fault.Failf("free space there", "no space")
	require.NoError(t, Join())
	require.NoError(t, Join(nil, nil))
	require.EqualError(t, Join(nil, cut), "cut")
	for want, errs := range map[fault.Class][]error{
		fault.Interrupted: {cut, nil, cut},
		fault.Refused:     {cut, refused, cut},
		fault.Failed:      {cut, refused, failed},
	} {
		err := Join(errs...)
		require.Equal(t, want, fault.ClassOf(err))
		for _, one := range errs {
			if one != nil {
				require.ErrorIs(t, err, one)
			}
		}
		require.NotEmpty(t, fault.HintOf(err), "of the first error that has one")
	}
}

// TestSettle expects that only a cancelled ctx is an interruption by the user. Another cancellation
// is a failure.
func TestSettle(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	err := fmt.Errorf("verify: %w", context.Canceled)
	require.Equal(t, fault.Failed, fault.ClassOf(Settle(ctx, err)))
	stop()
	require.Equal(t, fault.Interrupted, fault.ClassOf(Settle(ctx, err)))
	require.Equal(t, fault.Failed, fault.ClassOf(Settle(ctx, errors.New("no space"))))
	require.Equal(t, fault.Refused, fault.ClassOf(Settle(ctx, fault.Refusef("", "%w", context.Canceled))))
	require.NoError(t, Settle(ctx, nil))
}
