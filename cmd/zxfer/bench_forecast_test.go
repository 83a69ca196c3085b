package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/job/dev"
	"zxfer/pkg/size"
)

// BenchmarkForecast compares the rate that zxfer dev --measure predicts with the rate of the
// copy that follows. It asserts nothing about rates: scripts/bench forecast runs it and
// formats the logged lines as a table.
func BenchmarkForecast(b *testing.B) {
	b.Run("processor-tls", benchProcessor)
	b.Run("1gbit-20ms", func(b *testing.B) { benchLine(b, newFarHosts(b, gigabit()), 384<<20) })
	b.Run("100mbit-2ms", func(b *testing.B) {
		benchLine(b, newFarHosts(b, lineShape{Rate: 100e6, Delay: time.Millisecond, Queue: 1 << 20}), 48<<20)
	})
	b.Run("1gbit-20ms-small-tcp_rmem", func(b *testing.B) {
		f := newFarHosts(b, gigabit())
		f.on(b, f.far, "sysctl", "-qw", "net.ipv4.tcp_rmem=4096 65536 262144")
		benchRemedies(b, f, f.far)
	})
	b.Run("1gbit-20ms-small-tcp_wmem", func(b *testing.B) {
		f := newFarHosts(b, gigabit())
		f.on(b, f.near, "sysctl", "-qw", "net.ipv4.tcp_wmem=4096 16384 1048576")
		benchRemedies(b, f, f.near, "--streams", "1")
	})
}

// forecast holds an expected or measured rate in bytes per second and its bottleneck.
type forecast struct {
	rate  float64
	limit string
}

// logForecast measures once and logs a row of the table.
func logForecast(b *testing.B, measure func() (expected, got forecast)) {
	row := strings.TrimPrefix(b.Name(), "BenchmarkForecast/")
	done := false
	defer func() {
		if !done {
			b.Logf("forecast row=%s failed=1", row)
		}
	}()
	for b.Loop() {
		expected, got := measure()
		b.ReportMetric(expected.rate/1e6, "expected-MB/s")
		b.ReportMetric(got.rate/1e6, "measured-MB/s")
		b.ReportMetric(expected.rate/got.rate, "ratio")
		word := func(s string) string { return strings.ReplaceAll(s, " ", "-") }
		b.Logf("forecast row=%s expected=%.0f expected_limit=%s measured=%.0f measured_limit=%s",
			row, expected.rate, word(expected.limit), got.rate, word(got.limit))
	}
	done = true
}

// rates returns the expected and the measured rate of a copy.
func rates(b *testing.B, r dev.Report) (expected, got forecast) {
	b.Helper()
	require.NotEmpty(b, r.Results)
	last := r.Results[len(r.Results)-1]
	if r.Expected != nil {
		expected = forecast{float64(r.Expected.BytesPerSecond), r.Expected.LimitedBy}
	}
	return expected, forecast{float64(last.Rate), last.LimitedBy}
}

// benchProcessor copies over TLS between two processes of this host. The sender cannot use the
// processor's cipher instructions, which makes it the bottleneck.
func benchProcessor(b *testing.B) {
	dir := b.TempDir()
	bin, rsh, src, dst := filepath.Join(dir, "zxfer"), filepath.Join(dir, "rsh"), filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	require.NoError(b, installSelf(b, bin))
	require.NoError(b, os.WriteFile(rsh, []byte(`#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 2" HOME="`+dir+`"
unset GODEBUG
exec sh -c "$*"
`), 0o755))
	randomFile(b, src, 256<<20)
	logForecast(b, func() (expected, got forecast) {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(b.Context(), bin, "dev", "--measure", "--json", "--no-verify", "--wire", "tls", "--buffer", "4MiB", "-e", rsh, src, "beta:"+dst)
		cmd.Env = append(os.Environ(), "GODEBUG=cpu.aes=off,cpu.pclmulqdq=off,cpu.avx=off,cpu.avx2=off,cpu.ssse3=off,cpu.sse41=off")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		require.NoError(b, cmd.Run(), "%s", &stderr)
		var r dev.Report
		require.NoError(b, json.Unmarshal(stdout.Bytes(), &r))
		return rates(b, r)
	})
}

// benchLine copies a number of bytes between the far hosts.
func benchLine(b *testing.B, f *farHosts, bytes int64) {
	randomFile(b, f.source(), bytes)
	logForecast(b, func() (expected, got forecast) { return rates(b, f.copy(b, "--measure")) })
}

// benchRemedies copies over a link that a socket buffer limits. It copies again with each remedy
// that zxfer prints (more streams, and a sysctl on host) and compares the rate with the
// printed one.
func benchRemedies(b *testing.B, f *farHosts, host lineEnd, args ...string) {
	randomFile(b, f.source(), 384<<20)
	var remedy string
	b.Run("as-it-is", func(b *testing.B) {
		logForecast(b, func() (expected, got forecast) {
			r := f.copy(b, append(args, "--measure")...)
			for _, found := range r.Findings {
				if found.ID == "link" && found.Remedy != "" {
					remedy = found.Remedy
				}
			}
			return rates(b, r)
		})
	})
	// --streams 32 (measured: 113.4 MiB/s); or for the same rate, on beta: sysctl …
	m := regexp.MustCompile(`^(--streams \d+) \(measured: (\S+) (\S+)/s\); or for the same rate(?: or more)?, on \w+: (.*)$`).FindStringSubmatch(remedy)
	benchRemedy := func(name string, apply func(b *testing.B) (args []string)) {
		b.Run(name, func(b *testing.B) {
			logForecast(b, func() (expected, got forecast) {
				require.NotNil(b, m, "no remedy was printed: %q", remedy)
				rate, err := size.Parse(m[2] + m[3])
				require.NoError(b, err)
				_, got = rates(b, f.copy(b, apply(b)...))
				return forecast{float64(rate), "-"}, got
			})
		})
	}
	benchRemedy("streams", func(*testing.B) []string { return strings.Fields(m[1]) })
	benchRemedy("sysctl", func(b *testing.B) []string {
		f.on(b, host, "sh", "-c", m[4])
		return args
	})
}

// source returns the path of the file to copy.
func (f *farHosts) source() string { return filepath.Join(f.dir, "src") }

func (f *farHosts) copy(b *testing.B, args ...string) (r dev.Report) {
	b.Helper()
	dst := filepath.Join(f.dir, "dst")
	require.NoError(b, os.RemoveAll(dst))
	f.line.Record()
	f.zxfer(b, &r, "dev", append(args, "--no-verify", f.source(), "beta:"+dst)...)
	forward, backward := f.line.Record()
	b.ReportMetric(100*max(forward.LateShare(), backward.LateShare()), "%late") // caused by a busy machine
	return r
}

// randomFile writes a file of incompressible data.
func randomFile(b *testing.B, path string, bytes int64) {
	b.Helper()
	out, err := os.Create(path)
	require.NoError(b, err)
	defer out.Close()
	cmd := exec.Command("head", "-c", strconv.FormatInt(bytes, 10), "/dev/urandom")
	cmd.Stdout = out
	require.NoError(b, cmd.Run())
}
