package device

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/transport/tcp"
)

// BenchmarkDevice copies an image file to another on tmpfs, over loopback or within
// the process. ZXFER_BENCH_DIR names the tmpfs.
func BenchmarkDevice(b *testing.B) {
	dir := os.Getenv("ZXFER_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	}
	const size = 1 << 30
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	require.NoError(b, os.WriteFile(from, transfertest.Random(size), 0o600))
	require.NoError(b, os.WriteFile(to, transfertest.Random(size), 0o600))
	b.Cleanup(func() { _ = os.Remove(from); _ = os.Remove(to) })
	for _, c := range []struct {
		name     string
		mode     tcp.Mode
		noVerify bool
	}{
		{"local", "", false}, {"local-unverified", "", true},
		{"plain", tcp.Plain, false}, {"plain-unverified", tcp.Plain, true}, {"signed", tcp.Signed, false}, {"tls", tcp.TLS, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			opt := Options{Options: transfer.Options{Block: 1 << 20, Compress: "off"}, NoVerify: c.noVerify}
			b.SetBytes(size)
			wasDirect := transfertest.CPUTime(b)
			for b.Loop() {
				f, err := Inspect(context.Background(), from)
				require.NoError(b, err)
				src, err := OpenSource(context.Background(), f, false)
				require.NoError(b, err)
				g, err := Inspect(context.Background(), to)
				require.NoError(b, err)
				dst, err := OpenTarget(context.Background(), g, size, false)
				require.NoError(b, err)
				if c.mode == "" {
					_, err = copyLocal(context.Background(), src, dst, nil, opt, nil)
					require.NoError(b, err)
					continue
				}
				sender, receiver := transfertest.Links(b, c.mode, 1, nil)
				done := make(chan error, 1)
				go func() {
					_, err := receive(context.Background(), receiver, dst, nil, size, opt, nil)
					done <- err
				}()
				_, err = send(context.Background(), src, sender, opt, nil)
				require.NoError(b, err)
				require.NoError(b, <-done)
			}
			b.ReportMetric((transfertest.CPUTime(b)-wasDirect).Seconds()/(float64(b.N)*size/1e9), "cpu-s/GB")
		})
	}
}
