package roundtrips

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/endpoint"
	"zxfer/pkg/hosts"
	"zxfer/pkg/job/send"
	"zxfer/pkg/transfer"
)

// TestBandwidthLimitIsTotal expects that the parallel streams of a command together keep the limit, also
// those within messages, and that another command has its own.
func TestBandwidthLimitIsTotal(t *testing.T) {
	const limit = 1 << 20
	tank, vault := endpoint.Endpoint{Name: "tank/a"}, endpoint.Endpoint{Name: "vault/a"}
	for _, tt := range []struct {
		source, target     string
		parallel, datasets int
		bytes              int // of each dataset
	}{
		{"", "beta", 2, 8, 1 << 20},
		{"", "beta", 4, 8, 1 << 20},
		{"beta", "", 2, 8, 1 << 20},
		{"beta", "", 4, 8, 1 << 20},
		{"", "", 4, 8, 1 << 20},
		{"", "beta", 4, 99, 64 << 10},
		{"beta", "", 4, 99, 64 << 10},
	} {
		t.Run(fmt.Sprintf("%q to %q, %d of %d streams of %d bytes", tt.source, tt.target, tt.parallel, tt.datasets, tt.bytes), func(t *testing.T) {
			inWorld(t, func(w *world) {
				datasets := w.many()
				w.change(datasets[1:tt.datasets+1], tt.bytes)
				for _, h := range w.hosts() {
					var snapshots []string
					for _, d := range datasets[:tt.datasets+1] {
						snapshots = append(snapshots, d+"@1")
					}
					require.NoError(w.t, h.Snapshot(w.t.Context(), snapshots))
				}
				command := func(to string) (func(at *hosts.Set) error, *send.Report) {
					source, target := tank, vault
					source.Host, target.Host, target.Name = tt.source, tt.target, to
					return w.send(source, target, func(r *send.Request) {
						r.Plan.Recursive, r.Plan.Target, r.Plan.Snapshot = true, to, "1"
						r.Parallel, r.Bandwidth, r.Compress = tt.parallel, limit, "off"
					})
				}
				first, a := command("vault/a")
				second, b := command("vault/b")
				w.measure(func(at *hosts.Set) error {
					var both sync.WaitGroup
					for _, run := range []func(*hosts.Set) error{first, second} {
						both.Go(func() {
							if err := run(at); err != nil {
								w.t.Error(err)
							}
						})
					}
					both.Wait()
					return nil
				})
				want := time.Duration(tt.datasets*tt.bytes) * time.Second / limit
				for _, r := range []*send.Report{a, b} {
					require.GreaterOrEqual(w.t, r.Seconds, want.Seconds())
					require.Less(w.t, r.Seconds, (want * 3 / 2).Seconds(), "each command has its own limit")
					for _, s := range r.Results {
						if s.Bytes >= 1<<20 {
							require.Equal(w.t, transfer.LimitBandwidth, s.LimitedBy)
						}
					}
				}
			})
		})
	}
}
