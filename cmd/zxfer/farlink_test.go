package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/finding"
	"zxfer/pkg/job"
	"zxfer/pkg/size"
)

// gigabit is 1 Gbit/s over 20 ms, with a queue of 40 ms.
func gigabit() lineShape {
	return lineShape{Rate: 1e9, Delay: 10 * time.Millisecond, Queue: 5 << 20}
}

// goodput is what TCP carries of a rate in bits per second at best, in bytes
// per second: 1448 of 1500 are payload.
func goodput(rate int64) float64 { return float64(rate) / 8 * 1448 / 1500 }

// linkRate is that of the link as asked for, in bytes per second.
func linkRate(r job.DoctorReport) float64 {
	for _, c := range r.Ceilings {
		if c.ID == "link" {
			return float64(c.BytesPerSecond)
		}
	}
	return 0
}

// verdict is an error unless doctor says that of the link.
func verdict(t *testing.T, r job.DoctorReport, severity finding.Severity, summary string) (finding.Finding, error) {
	t.Helper()
	f := worstOf(t, r, "link")
	if f.Severity != severity || !strings.Contains(f.Summary, summary) {
		return f, fmt.Errorf("not %q: %+v", summary, f)
	}
	return f, nil
}

// carries is an error unless doctor finds that the link is as fast as its rate.
func carries(t *testing.T, r job.DoctorReport, rate int64) error {
	t.Helper()
	_, err := verdict(t, r, finding.OK, "which is what the path carries")
	return errors.Join(err, within(goodput(rate), linkRate(r), 0.2))
}

// The verdict names what limits the link, and each printed cure raises the
// rate as it says.
func TestFarLink(t *testing.T) { //nolint:paralleltest // it is a measurement
	measurable(t)
	f := newFarHosts(t, gigabit())
	t.Run("1 Gbit/s, 20 ms", func(t *testing.T) {
		f.measured(t, func() error { return carries(t, f.doctor(t), 1e9) })
	})
	t.Run("small tcp_rmem", func(t *testing.T) {
		t.Cleanup(func() { f.on(t, f.far, "sysctl", "-qw", defaultRead) })
		f.measured(t, func() error {
			f.on(t, f.far, "sysctl", "-qw", "net.ipv4.tcp_rmem=4096 65536 262144")
			return f.cured(t, f.far, "limited by the receiver's window", true)
		})
	})
	t.Run("small tcp_wmem", func(t *testing.T) {
		t.Cleanup(func() { f.on(t, f.near, "sysctl", "-qw", defaultWrite) })
		f.measured(t, func() error {
			f.on(t, f.near, "sysctl", "-qw", "net.ipv4.tcp_wmem=4096 16384 1048576")
			return f.cured(t, f.near, "limited by the sender's buffer", false, "--streams", "1")
		})
	})
	t.Run("100 Mbit/s", func(t *testing.T) {
		f.line.Set(lineShape{Rate: 100e6, Delay: time.Millisecond, Queue: 1 << 20})
		t.Cleanup(func() { f.line.Set(gigabit()) })
		f.measured(t, func() error { return carries(t, f.doctor(t), 100e6) })
	})
	t.Run("packets of another size", func(t *testing.T) {
		quick := func() finding.Finding { return worstOf(t, f.doctor(t, "--time", "100ms"), "mtu") }
		f.on(t, f.far, "ip", "link", "set", "dev", f.far.Device, "mtu", "1400")
		found := quick()
		require.Equal(t, finding.Note, found.Severity)
		_, command, ok := strings.Cut(found.Remedy, "on beta: ")
		require.True(t, ok, found.Remedy)
		f.on(t, f.far, "sh", "-c", command)
		require.Equal(t, finding.OK, quick().Severity)
	})
}

// cured is an error unless doctor finds that cause, and its cures give the rate
// that it prints: other --streams, if those are to be tried, and a command on a
// host.
func (f *farHosts) cured(t *testing.T, host lineEnd, cause string, streams bool, args ...string) error {
	t.Helper()
	r := f.doctor(t, args...)
	found, err := verdict(t, r, finding.Warn, cause)
	if err != nil {
		return err
	}
	t.Log(found.Remedy)
	// --streams 32 (measured: 113.4 MiB/s); or for as much, on beta: sysctl …
	m := regexp.MustCompile(`^(--streams \d+) \(measured: (\S+) (\S+)/s\); or for as much( or more)?, on \w+: (.*)$`).FindStringSubmatch(found.Remedy)
	require.NotNil(t, m, found.Remedy)
	n, err := size.Parse(m[2] + m[3])
	require.NoError(t, err)
	expected := float64(n)
	if before := linkRate(r); expected < 1.5*before {
		return fmt.Errorf("expected %.0f B/s of a cure, %.0f without", expected, before)
	}
	if streams {
		if err := within(expected, linkRate(f.doctor(t, strings.Fields(m[1])...)), 0.2); err != nil {
			return fmt.Errorf("%s: %w", m[1], err)
		}
	}
	f.on(t, host, "sh", "-c", m[5])
	r = f.doctor(t, args...)
	if got := linkRate(r); got < 0.8*expected {
		return fmt.Errorf("%s: got %.0f B/s, as much as %.0f was said", m[5], got, expected)
	}
	return carries(t, r, 1e9) // and not more than the path carries
}
