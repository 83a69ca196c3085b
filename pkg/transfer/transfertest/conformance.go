// Package transfertest tests implementations of package transfer's interfaces.
//
//   - [SourceConforms], [SinkConforms]: suites that every Source and Sink must pass.
//   - [Source]: a Source in memory that fails or hangs on demand.
//   - [Links]: both ends of a link over loopback. [Proxied], [Tamper]: a proxy that modifies bytes.
//
// It uses no network but loopback, and does not know datasets or devices.
package transfertest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/transfer"
)

// Sources creates the Sources under test. A field is nil if the Source cannot behave that way.
type Sources struct {
	// Whole returns a Source that ends well, and its bytes.
	Whole func(t *testing.T) (transfer.Source, []byte)
	// Failing returns a Source whose producer fails after some bytes, and the error to match.
	Failing func(t *testing.T) (transfer.Source, error)
	// Endless returns a Source that yields bytes, or none, for longer than the test runs.
	Endless func(t *testing.T) transfer.Source
}

// SourceConforms runs the conformance suite for Sources.
func SourceConforms(t *testing.T, of Sources) {
	t.Run("whole stream", func(t *testing.T) {
		if of.Whole == nil {
			t.Skip("its bytes are unknown beforehand")
		}
		src, want := of.Whole(t)
		require.NotEmpty(t, src.Name())
		got, err := io.ReadAll(src)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), "%d bytes instead of %d, or other ones", len(got), len(want))
		_, err = src.Read([]byte{0})
		require.ErrorIs(t, err, io.EOF, "the end must be permanent")
		_ = src.Close()
		_ = src.Close() // must not panic or hang
	})
	t.Run("producer fails", func(t *testing.T) {
		if of.Failing == nil {
			t.Skip("it cannot fail")
		}
		src, want := of.Failing(t)
		_, err := io.ReadAll(src)
		require.ErrorIs(t, err, want, "a failure must not look like an end")
		_ = src.Close()
	})
	t.Run("failure is never committed", func(t *testing.T) {
		if of.Failing == nil {
			t.Skip("it cannot fail")
		}
		src, want := of.Failing(t)
		var sink discardSink
		_, err := transfer.Copy(context.Background(), src, &sink, transfer.Options{}, nil)
		require.ErrorIs(t, err, want)
		require.False(t, sink.committed)
		_ = src.Close()
	})
	t.Run("close ends a read", func(t *testing.T) {
		src := of.Endless(t)
		done := start(func() error { _, err := io.Copy(io.Discard, src); return err })
		time.Sleep(20 * time.Millisecond)
		_ = src.Close()
		require.Error(t, waitFor(t, done, "Read did not return after Close"))
	})
	t.Run("cancel", func(t *testing.T) {
		src := of.Endless(t)
		ctx, cancel := context.WithCancel(context.Background())
		done := start(func() error {
			_, err := transfer.Copy(ctx, src, &discardSink{}, transfer.Options{}, nil)
			return err
		})
		time.Sleep(20 * time.Millisecond)
		cancel()
		require.ErrorIs(t, waitFor(t, done, "Copy did not end when cancelled"), context.Canceled)
		_ = src.Close()
	})
}

// discardSink is a transfer.Sink that discards the stream.
type discardSink struct{ committed bool }

func (n *discardSink) Write(p []byte) (int, error)  { return len(p), nil }
func (n *discardSink) Commit(context.Context) error { n.committed = true; return nil }
func (n *discardSink) Abort(error) error            { return nil }
func (n *discardSink) Name() string                 { return "nowhere" }

// Sinks creates the Sinks under test.
type Sinks struct {
	// Sink returns an empty Sink. After Commit or Abort, stored returns the stored bytes; nil,
	// false if nothing took effect.
	Sink func(t *testing.T) (sink transfer.Sink, stored func() ([]byte, bool))
	// Stream is a stream that the Sink accepts.
	Stream []byte
	// Final is set if written bytes take effect immediately, without Commit.
	Final bool
	// Full returns a Sink too small for Stream, and the error to match; nil if that is
	// impossible.
	Full func(t *testing.T) (transfer.Sink, error)
}

// SinkConforms runs the conformance suite for Sinks.
func SinkConforms(t *testing.T, of Sinks) {
	nothing := func(t *testing.T, stored func() ([]byte, bool)) {
		t.Helper()
		_, ok := stored()
		require.False(t, ok && !of.Final, "an uncommitted stream took effect")
	}
	t.Run("whole stream", func(t *testing.T) {
		sink, stored := of.Sink(t)
		require.NotEmpty(t, sink.Name())
		_, err := transfer.Copy(context.Background(), NewSource(of.Stream), sink, transfer.Options{}, nil)
		require.NoError(t, err)
		got, ok := stored()
		require.True(t, ok, "nothing was stored")
		require.True(t, bytes.Equal(of.Stream, got), "%d bytes instead of %d, or other ones", len(got), len(of.Stream))
	})
	t.Run("producer fails at the last byte", func(t *testing.T) {
		// Even a whole stream must not count before the source has ended well.
		sink, stored := of.Sink(t)
		src := NewSource(of.Stream)
		src.Err = errors.New("producer failed")
		_, err := transfer.Copy(context.Background(), src, sink, transfer.Options{}, nil)
		require.ErrorIs(t, err, src.Err)
		nothing(t, stored)
	})
	t.Run("short stream", func(t *testing.T) {
		sink, stored := of.Sink(t)
		src := NewSource(of.Stream[:len(of.Stream)/2])
		src.Err = io.ErrUnexpectedEOF
		_, err := transfer.Copy(context.Background(), src, sink, transfer.Options{}, nil)
		require.ErrorIs(t, err, src.Err)
		nothing(t, stored)
	})
	t.Run("abort immediately", func(t *testing.T) {
		sink, stored := of.Sink(t)
		_ = sink.Abort(errors.New("changed my mind"))
		nothing(t, stored)
	})
	t.Run("cancel", func(t *testing.T) {
		sink, stored := of.Sink(t)
		src := NewSource(of.Stream[:len(of.Stream)/2])
		src.Hang = true
		ctx, cancel := context.WithCancel(context.Background())
		done := start(func() error {
			_, err := transfer.Copy(ctx, src, sink, transfer.Options{}, nil)
			return err
		})
		time.Sleep(20 * time.Millisecond)
		cancel()
		require.ErrorIs(t, waitFor(t, done, "Copy did not end when cancelled"), context.Canceled)
		nothing(t, stored)
	})
	if of.Full == nil {
		return
	}
	t.Run("full", func(t *testing.T) {
		sink, want := of.Full(t)
		_, err := transfer.Copy(context.Background(), NewSource(of.Stream), sink, transfer.Options{}, nil)
		require.ErrorIs(t, err, want)
	})
}

func start(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func waitFor(t *testing.T, done <-chan error, otherwise string) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(testenv.Timeout()):
		require.Fail(t, otherwise)
		return nil
	}
}
