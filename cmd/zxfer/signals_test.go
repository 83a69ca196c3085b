package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
)

// TestInterviewEndsOnSignal cancels an unanswered question as a signal does, and expects the
// interview to end.
func TestInterviewEndsOnSignal(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	in, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	go func() {
		_, _ = w.Write([]byte("tank/vm\n")) // the next question remains unanswered
		cancel(errSignal)
	}()
	var out bytes.Buffer
	_, err := interview(interruptibleReader{ctx, in}, &out)
	require.ErrorIs(t, err, errSignal)
	require.Equal(t, fault.Interrupted, fault.ClassOf(err))
	require.Equal(t, "nothing was changed", fault.HintOf(err))
}

func TestInterruptibleReaderReadsAll(t *testing.T) {
	t.Parallel()
	got, err := io.ReadAll(interruptibleReader{t.Context(), strings.NewReader("some text")})
	require.NoError(t, err)
	require.Equal(t, "some text", string(got))
}

// TestSignalErrorIsInterrupted expects an error to count as interrupted if a signal
// stopped zfs. Any other error of zfs counts as a failure.
func TestSignalErrorIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errSignal)
	require.Equal(t, fault.Interrupted, exitClass(ctx, fmt.Errorf("zfs get tank: %w", context.Cause(ctx))))
	require.Equal(t, fault.Failed, exitClass(ctx, errors.New("zfs get tank: no such pool")))
}
