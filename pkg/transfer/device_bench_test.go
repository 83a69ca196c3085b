package transfer_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/transfer"
	"zxfer/pkg/wire"
)

// benchDevice adapts an image file.
type benchSource struct {
	*device.Source
}

func (benchSource) Name() string                { return "source" }
func (benchSource) BadRanges() []transfer.Range { return nil }

type benchTarget struct{ *device.Target }

func (benchTarget) Name() string { return "target" }

// BenchmarkDevice copies an image file on a tmpfs to another one, over
// loopback or within the process. ZXFER_BENCH_DIR names the tmpfs.
func BenchmarkDevice(b *testing.B) {
	dir := os.Getenv("ZXFER_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	const size = 1 << 30
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(b, os.WriteFile(from, random(size), 0o600))
	require.NoError(b, os.WriteFile(to, random(size), 0o600))
	b.Cleanup(func() { _ = os.Remove(from); _ = os.Remove(to) })
	for _, c := range []struct {
		name     string
		mode     wire.Mode
		noVerify bool
	}{
		{"local", "", false}, {"local-unverified", "", true},
		{"plain", wire.Plain, false}, {"plain-unverified", wire.Plain, true}, {"signed", wire.Signed, false}, {"tls", wire.TLS, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			opt := transfer.DeviceOptions{Options: transfer.Options{Block: 1 << 20, Compress: "off"}, NoVerify: c.noVerify}
			b.SetBytes(size)
			began := cpuTime(b)
			for b.Loop() {
				_ = to
				f, err := device.Inspect(context.Background(), from)
				require.NoError(b, err)
				src, err := device.OpenSource(context.Background(), f, device.Options{})
				require.NoError(b, err)
				g, err := device.Inspect(context.Background(), to)
				require.NoError(b, err)
				dst, err := device.OpenTarget(context.Background(), g, size, device.Options{})
				require.NoError(b, err)
				if c.mode == "" {
					_, err = transfer.CopyDevice(context.Background(), benchSource{src}, benchTarget{dst}, nil, opt, nil)
					require.NoError(b, err)
					continue
				}
				sender, receiver := links(b, c.mode, 1, nil)
				done := make(chan error, 1)
				go func() {
					_, err := transfer.ReceiveDevice(context.Background(), receiver, benchTarget{dst}, nil, size, opt, nil)
					done <- err
				}()
				_, err = transfer.SendDevice(context.Background(), benchSource{src}, sender, opt, nil)
				require.NoError(b, err)
				require.NoError(b, <-done)
			}
			b.ReportMetric((cpuTime(b)-began).Seconds()/(float64(b.N)*size/1e9), "cpu-s/GB")
		})
	}
}
