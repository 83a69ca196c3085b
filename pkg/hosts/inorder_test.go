package hosts

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// sequenced is a host whose requests end with errors, in order; nil after their end.
type sequenced struct {
	Host
	ends []error
	ran  []string
}

func (s *sequenced) Run(_ context.Context, r *Request) error {
	s.ran = append(s.ran, r.Args.(string))
	if len(s.ends) == 0 {
		return nil
	}
	err := s.ends[0]
	s.ends = s.ends[1:]
	return err
}

// TestInOrder expects that a failed request stops the later ones, and that a retry continues with the
// first one that has not succeeded.
func TestInOrder(t *testing.T) {
	t.Parallel()
	busy := errors.New("busy")
	for name, tt := range map[string]struct {
		ends []error
		ran  []string
		want []error
	}{
		"success":       {nil, []string{"a", "b", "c"}, []error{nil, nil, nil}},
		"failure":       {[]error{nil, busy}, []string{"a", "b"}, []error{nil, busy, ErrNotStarted}},
		"lost":          {[]error{nil, ErrLost}, []string{"a", "b", "b", "c"}, []error{nil, nil, nil}},
		"lost, failure": {[]error{ErrLost, busy}, []string{"a", "a"}, []error{busy, ErrNotStarted, ErrNotStarted}},
		"lost twice":    {[]error{nil, ErrLost, ErrLost}, []string{"a", "b", "b"}, []error{nil, ErrLost, ErrNotStarted}},
	} {
		s := &sequenced{ends: tt.ends}
		retry := func(_ context.Context, f func(Host) error) error {
			err := f(s)
			if errors.Is(err, ErrLost) {
				err = f(s)
			}
			return err
		}
		var all []*Request
		for _, arg := range []string{"a", "b", "c"} {
			all = append(all, OpSync.Request(arg, nil))
		}
		require.Equal(t, fmt.Sprint(tt.want), fmt.Sprint(InOrder(t.Context(), retry, all...)), name)
		require.Equal(t, tt.ran, s.ran, name)
	}
	unreachable := func(context.Context, func(Host) error) error { return busy }
	require.Equal(t, []error{busy, ErrNotStarted}, InOrder(t.Context(), unreachable, OpSync.Request("a", nil), OpSync.Request("b", nil)))
}
