package main

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/fault"
	"zxfer/pkg/job/send"
	"zxfer/pkg/plan"
	"zxfer/pkg/testenv"
	"zxfer/pkg/transport"
)

// parseSend returns the request for a command line of send.
func parseSend(t *testing.T, args ...string) (send.Request, error) {
	t.Helper()
	cmd := newSend(&app{stdin: os.Stdin, stdout: io.Discard, stderr: io.Discard})
	o := &sendOptions{now: func() time.Time { return time.Date(2026, 11, 22, 17, 48, 3, 0, time.FixedZone("", 3600)) }}
	cmd.ResetFlags()
	o.define(cmd)
	require.NoError(t, cmd.ParseFlags(args))
	rest := cmd.Flags().Args()
	require.Len(t, rest, 2)
	return o.request(cmd.Flags(), rest[0], rest[1])
}

func TestSendDefaults(t *testing.T) {
	t.Parallel()
	req, err := parseSend(t, "tank/ds", "backup:vault")
	require.NoError(t, err)
	require.Equal(t, send.Request{
		Source: endpoint.Endpoint{Name: "tank/ds"}, Target: endpoint.Endpoint{Host: "backup", Name: "vault"},
		Plan:     plan.Request{Source: "tank/ds", Target: "vault"},
		Parallel: 1, Retries: 5,
	}, req)
}

func TestSendFlags(t *testing.T) {
	t.Parallel()
	req, err := parseSend(t,
		"-nRp", "--include-snaps", "a*", "--include-snaps", "b*", "--exclude-snaps", "*,x", "--latest-only", "--hold", "keep", "--bookmark",
		"--carry", "org.example:a", "--carry", "org.example:b", "-o", "compression=zstd", "-o", "zxfer:note=a=b,c", "-x", "quota", "-x", "atime", "--decrypt", "--rollback", "--no-resume", "--verify",
		"--wire", "plain", "--trusted-link", "--streams", "4", "--window", "4MiB", "--buffer", "1G", "--bwlimit", "100MiB",
		"--compress", "zstd:3", "--compress-threads", "2", "--dial", "target", "--data-address", "10.0.0.2", "--port-range", "9000-9010",
		"--parallel", "3", "--retries", "0", "-e", "ssh -p 22", "--no-bootstrap", "--skip-check", "space", "--skip-check", "keys",
		"me@a:tank/ds@x", "b:vault/")
	require.NoError(t, err)
	require.Equal(t, send.Request{
		Source: endpoint.Endpoint{Host: "me@a", Name: "tank/ds@x"}, Target: endpoint.Endpoint{Host: "b", Name: "vault/"},
		Plan: plan.Request{
			Source: "tank/ds", Snapshot: "x", Target: "vault/", Recursive: true, LatestOnly: true,
			IncludeSnapshots: []string{"a*", "b*"}, ExcludeSnapshots: []string{"*,x"}, Decrypt: true, Rollback: true, NoResume: true,
			CarryProperties: true, CarryNamed: []string{"org.example:a", "org.example:b"}, Set: map[string]string{"compression": "zstd", "zxfer:note": "a=b,c"}, Exclude: []string{"quota", "atime"},
		},
		Hold: "keep", Bookmark: true, Verify: true, DryRun: true,
		Settings: transport.Settings{
			Wire: "plain", TrustedLink: true, Streams: 4, Socket: transport.Socket{Window: 4 << 20}, Dial: "target", DataAddress: "10.0.0.2", Ports: transport.Ports{Low: 9000, High: 9010},
			Buffer: 1 << 30, Bandwidth: 100 << 20, Compress: "zstd:3", CompressThreads: 2, RSH: "ssh -p 22", NoBootstrap: true,
		},
		Parallel: 3, Retries: 0, SkipChecks: []string{"space", "keys"},
	}, req)

	req, err = parseSend(t, "--newest", "5", "--since", "3d12h", "--first", "fail", "tank/ds", "b:vault")
	require.NoError(t, err)
	require.Equal(t, 5, req.Plan.Newest)
	require.Equal(t, "2026-11-19T05:48:03+01:00", req.Plan.Since.Format(time.RFC3339))
	require.Equal(t, plan.FirstFail, req.Plan.First)

	req, err = parseSend(t, "-r", "--snapshot", "now", "--window", "64G", "tank/ds", "b:vault")
	require.NoError(t, err)
	require.True(t, req.Plan.Recursive)
	require.Equal(t, "now", req.TakeSnapshot)
	require.Equal(t, "now", req.Plan.Snapshot, "the new snapshot is the one to send")
	require.EqualValues(t, 1<<30-1, req.Window, "the maximum of the kernel")

	req, err = parseSend(t, "-R", "--snapshot=", "tank/ds", "b:vault")
	require.NoError(t, err)
	require.Equal(t, "zxfer-2026-11-22T16:48:03Z", req.TakeSnapshot, "named after the time in UTC")
	require.Equal(t, req.TakeSnapshot, req.Plan.Snapshot)

	req, err = parseSend(t, "/tank/ds@x", "vault")
	require.NoError(t, err)
	require.Equal(t, "/tank/ds@x", req.Plan.Source, "the survey resolves paths")
}

// TestExitClass expects a cancellation by a signal to count as interrupted. Other errors keep
// their class.
func TestExitClass(t *testing.T) {
	t.Parallel()
	signalled, cancel := context.WithCancelCause(t.Context())
	cancel(errSignal)
	require.Equal(t, fault.Interrupted, exitClass(signalled, context.Canceled))
	require.Equal(t, fault.Failed, exitClass(signalled, errors.New("broke")))
	require.Equal(t, fault.Refused, exitClass(signalled, fault.Refusef("", "no")))
	require.Equal(t, fault.Failed, exitClass(t.Context(), context.Canceled), "canceled without a signal")
}

// fakePresenter is a presenter that records its calls.
type fakePresenter struct{ reports, ticks chan struct{} }

func (a fakePresenter) Status() { a.reports <- struct{}{} }

func (fakePresenter) State() string { return "" }

func (a fakePresenter) Tick() {
	select {
	case a.ticks <- struct{}{}:
	default:
	}
}

// TestSignals sends SIGUSR1 and SIGTERM to this process. It cannot run in parallel because
// signals affect the whole process.
func TestSignals(t *testing.T) {
	ctx, stop := withSignalsFor(t.Context(), testenv.Timeout())
	defer stop()
	reports := make(chan struct{}, 1)
	ticks := make(chan struct{}, 1)
	defer startLive(fakePresenter{reports, ticks})()

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
	select {
	case <-reports:
	case <-time.After(testenv.Timeout()):
		t.Fatal("no report after SIGUSR1")
	}
	require.NoError(t, ctx.Err(), "SIGUSR1 must not cancel")
	<-ticks

	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	select {
	case <-ctx.Done():
	case <-time.After(testenv.Timeout()):
		t.Fatal("SIGTERM did not cancel")
	}
	require.ErrorIs(t, context.Cause(ctx), errSignal)
	require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM), "a second SIGTERM must not end the process")
}
