package testenv

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fatal is a test that records how it failed.
type fatal struct {
	testing.TB
	failed bool
}

func (f *fatal) Fatalf(string, ...any) { f.failed = true; panic(f) }

func TestWiden(t *testing.T) {
	t.Parallel()
	var tried []time.Duration
	Widen(t, time.Second, func(d time.Duration) error {
		tried = append(tried, d)
		if d < 3*time.Second {
			return errors.New("too short")
		}
		return nil
	})
	require.Equal(t, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}, tried)
	f := &fatal{TB: t}
	require.Panics(t, func() { Widen(f, time.Second, func(time.Duration) error { return errors.New("never") }) })
	require.True(t, f.failed)
}
