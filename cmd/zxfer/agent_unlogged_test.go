package main

import (
	"bytes"
	"io"
	"log/syslog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
)

// TestRestrictedKeyWithoutLog expects that a restricted agent that cannot log refuses all requests with the
// remedy, and that authorize reports a missing system log.
func TestRestrictedKeyWithoutLog(t *testing.T) {
	t.Parallel()
	flags := map[string][]string{"file": {"--audit", filepath.Join(t.TempDir(), "missing", "log")}}
	log, err := syslog.New(syslog.LOG_NOTICE, "zxfer-test")
	if err == nil {
		require.NoError(t, log.Close())
	} else {
		flags["system log"] = nil
	}
	for name, audit := range flags {
		here, there := net.Pipe()
		ended := make(chan int, 1)
		go func() {
			a := &app{stdin: there, stdout: there, stderr: io.Discard, now: time.Now}
			ended <- execute(t.Context(), a, append([]string{"agent", "--allow", "receive=tank"}, audit...))
		}()
		r, err := agent.NewRemote(t.Context(), "beta", here, func(string) {})
		require.NoError(t, err, name)
		for _, op := range []func() error{
			func() error { _, err := hosts.Call(t.Context(), r, hosts.OpFacts, hosts.None{}); return err },
			func() error {
				_, err := hosts.Call(t.Context(), r, hosts.OpList, hosts.ListQuery{Dataset: "tank", NoAncestors: true})
				return err
			},
		} {
			err := op()
			require.ErrorContains(t, err, "no request without a log", name)
			require.Equal(t, fault.Refused, fault.ClassOf(err))
			require.Contains(t, fault.HintOf(err), "--audit")
		}
		require.NoError(t, r.Close())
		<-ended
	}

	public := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8MAGi1T+I3gLKnJvZ6D4KnC1C9+fNV1gA4a1yXe0Qd root@web1\n"
	var stdout, stderr bytes.Buffer
	a := &app{stdin: bytes.NewReader([]byte(public)), stdout: &stdout, stderr: &stderr, now: time.Now}
	require.Zero(t, execute(t.Context(), a, []string{"replicate", "authorize", "--allow", "receive=tank", "--key", "-", "--program", "/usr/bin/zxfer"}), &stderr)
	require.Contains(t, stdout.String(), "agent --allow receive=tank")
	if _, none := flags["system log"]; none {
		require.Contains(t, stderr.String(), "note: this host has no system log")
	} else {
		require.Empty(t, stderr.String())
	}
}
