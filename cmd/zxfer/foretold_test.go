package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job"
	"zxfer/pkg/probe"
)

// What --measure foretells of a copy that a processor without instructions for
// ciphers limits, through tls, against the copy that follows. Both ends are on
// this host, joined by a remote shell that only starts a shell.
func TestDoctorForetellsProcessor(t *testing.T) { //nolint:paralleltest // it is a measurement
	measurable(t)
	dir := t.TempDir()
	bin, rsh, src, dst := filepath.Join(dir, "zxfer"), filepath.Join(dir, "rsh"), filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(t, installSelf(bin))
	require.NoError(t, os.WriteFile(rsh, []byte(`#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 2" HOME="`+dir+`"
unset GODEBUG
exec sh -c "$*"
`), 0o755))
	random, err := exec.Command("head", "-c", "128M", "/dev/urandom").Output()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(src, random, 0o600))
	run := func(args ...string) (r job.DevReport) {
		require.NoError(t, os.RemoveAll(dst))
		var stdout, stderr bytes.Buffer
		args = append([]string{"dev", "--measure", "--json", "--no-verify", "--wire", "tls", "--buffer", "4MiB", "-e", rsh}, args...)
		cmd := exec.CommandContext(t.Context(), bin, append(args, src, "beta:"+dst)...)
		cmd.Env = append(os.Environ(), "GODEBUG=cpu.aes=off,cpu.pclmulqdq=off,cpu.avx=off,cpu.avx2=off,cpu.ssse3=off,cpu.sse41=off")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.NoError(t, cmd.Run(), "%s", &stderr)
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &r))
		return r
	}
	// A second's worth.
	second := int64(run("-n").Expected.BytesPerSecond)
	require.NoError(t, os.Truncate(src, min(second, int64(len(random)))))
	measured(t, func() error {
		r := run()
		require.Len(t, r.Results, 1)
		got := r.Results[0]
		t.Logf("expected %+v; got %d B/s, limited by %s", *r.Expected, got.Rate, got.LimitedBy)
		err := within(float64(r.Expected.BytesPerSecond), float64(got.Rate), 0.25)
		if r.Expected.LimitedBy != "sender cpu" || got.LimitedBy != "sender cpu" {
			err = fmt.Errorf("limited by %s, expected %+v", got.LimitedBy, *r.Expected)
		}
		if busy := othersBusy(t); err != nil && busy > 0.5 {
			t.Skipf("%.1f processors of this host are busy with other things; %v", busy, err)
		}
		return err
	})
}

// othersBusy is how many processors are busy while this test sleeps.
func othersBusy(t *testing.T) float64 {
	t.Helper()
	c, err := probe.Run(t.Context(), probe.Request{ID: probe.Idle, Time: 500 * time.Millisecond})
	require.NoError(t, err)
	return c.CPU
}

// measurable skips what cannot be measured here: two ends on one processor, or
// with the race detector, which slows a program down several times.
func measurable(t *testing.T) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skip("the two ends need a processor each")
	}
	info, ok := debug.ReadBuildInfo()
	if ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("a measurement: run it without the race detector")
	}
}
