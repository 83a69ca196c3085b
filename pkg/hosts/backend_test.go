package hosts

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/cli"
)

// TestHungBackendCanBeCancelled expects that if Python hangs at its start, a canceled call returns
// nevertheless.
func TestHungBackendCanBeCancelled(t *testing.T) {
	t.Parallel()
	hung := make(chan struct{})
	l := NewLocal("test", func(string) {})
	l.backend = func() (cli.Backend, string) { <-hung; return nil, "" }
	defer close(hung)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Estimate(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	over := make(chan error)
	go func() { _, err := l.Estimate(t.Context(), nil); over <- err }()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-over, context.Canceled)
}
