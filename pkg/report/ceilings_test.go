package report

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/finding"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/job/forecast"
	"zxfer/pkg/probe"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport/connect"
)

func measuredCeilings() []probe.Ceiling {
	return []probe.Ceiling{
		{ID: "link", Host: "local", Peer: "backup1", Title: "link local to backup1, tls x 1", BytesPerSecond: 110 << 20, CPU: 0.4},
		{ID: probe.SourceRead, Host: "local", Title: probe.Title(probe.SourceRead), BytesPerSecond: 900 << 20, CPU: 1, IOWait: 0.5},
		{ID: probe.TargetWrite, Host: "backup1", Title: probe.Title(probe.TargetWrite), Skipped: "the agent's policy forbids it"},
	}
}

func expectation() *forecast.Expected {
	return &forecast.Expected{BytesPerSecond: 110 << 20, LimitedBy: transfer.LimitNetwork, Host: "local", Ceiling: "link", Bytes: 5 << 30, Seconds: 46.5}
}

// TestMeasured expects that the plan shows all measurements, and that the headline before a
// transfer is one line.
func TestMeasured(t *testing.T) {
	t.Parallel()
	r := planned()
	r.Ceilings, r.Expected = measuredCeilings(), expectation()
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs})
	require.NoError(t, text.Done(r, nil, SendResult(r)))
	golden(t, "measured.txt", out.String())
	r.DryRun = false
	text.Planned(r)
	require.Contains(t, errs.String(), "expected: 110 MiB/s, limited by network (local); 5.0 GiB in about 46 s\n")

	r.Expected = nil
	require.Contains(t, planText(r), "expected: unknown, because no measurement succeeded\n")
	require.NotContains(t, planText(planned()), "expected")
}

// TestMeasuredDevice expects that a device copy also shows the measurements, and findings about
// hosts.
func TestMeasuredDevice(t *testing.T) {
	t.Parallel()
	r := &dev.Report{Source: "/dev/sda", Target: "backup1:/img", Size: 5 << 30, Wire: connect.Report{Mode: "tls"},
		From: &device.Facts{Path: "/dev/sda", Kind: "disk", Size: 5 << 30}, To: &device.Facts{Path: "/img", Kind: device.KindMissing},
		Findings: []finding.Finding{{ID: "nic", Host: "local", Severity: finding.Warn, Summary: "eth0 runs in half duplex", Evidence: "/sys/class/net/eth0", Remedy: "ethtool eth0"}},
		Ceilings: measuredCeilings(), Expected: expectation()}
	var out, errs bytes.Buffer
	text := NewText(Options{Stdout: &out, Stderr: &errs})
	text.DevicePlanned(r)
	require.Contains(t, errs.String(), "warning: local: eth0 runs in half duplex (nic)\nhint: ethtool eth0\nexpected: 110 MiB/s")
	r.DryRun = true
	require.NoError(t, text.Done(r, nil, DeviceResult(r)))
	require.Contains(t, out.String(), "warn: local: eth0 runs in half duplex (nic)")
	require.Contains(t, out.String(), "ceilings\n")
}
