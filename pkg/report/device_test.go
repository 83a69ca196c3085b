package report

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/device"
	"zxfer/pkg/job/dev"
	"zxfer/pkg/transport/connect"
)

func TestDeviceDone(t *testing.T) {
	t.Parallel()
	// A minute passed in all. The attempts took 4 s, and sent 40 MiB in the last 2 s.
	copied := func() *dev.Report {
		last := &dev.Result{Speed: connect.Speed{Seconds: 2, Rate: 20 << 20}, Wire: "local", Tries: 2}
		last.TargetDigest, last.SourceDigest = "d1", "d1"
		return &dev.Report{Source: "/dev/a", Target: "/b", Size: 64 << 20, Seconds: 60, Digest: device.BLAKE3,
			Results: []*dev.Result{{Speed: connect.Speed{Seconds: 2}, Error: "cut"}, last}}
	}
	tests := []struct {
		name           string
		change         func(r *dev.Report)
		err            error
		stdout, stderr string
	}{
		{"done", func(*dev.Report) {}, nil,
			"/dev/a -> /b: 64 MiB in 4.0 s (20 MiB/s), try 2, read back and verified\nBLAKE3 d1\n", ""},
		{"with the other digest", func(r *dev.Report) { r.Digest = device.XXH3 }, nil,
			"/dev/a -> /b: 64 MiB in 4.0 s (20 MiB/s), try 2, read back and verified by XXH3\n", ""},
		{"equal", func(r *dev.Report) { r.Compare, r.Digest = true, device.XXH3 }, nil, "/dev/a and /b are equal: 64 MiB, by XXH3\n", ""},
		{"changes of a volume", func(r *dev.Report) {
			r.Source, r.Volume = "tank/vm@b", &dev.VolumeReport{Snapshot: "tank/vm@b", Base: "@a", Estimate: 3 << 20}
			r.Results[1].Data, r.Results[1].Zeros, r.Results[1].Verified = 2<<20, 1<<20, 3<<20
		}, nil, "tank/vm@b -> /b: changes since @a, 2.0 MiB written in 4.0 s (20 MiB/s), 1.0 MiB zeros, try 2, read back and verified\n", ""},
		{"a volume, compared", func(r *dev.Report) {
			equal := true
			r.Source, r.Volume, r.Equal, r.Digest = "tank/vm@b", &dev.VolumeReport{Snapshot: "tank/vm@b"}, &equal, device.XXH3
		}, nil, "tank/vm@b -> /b: full copy, 0 B written in 4.0 s (20 MiB/s), try 2, not read back, equal to the snapshot by XXH3\n", ""},
		{"a volume, up to date", func(r *dev.Report) {
			r.Source, r.Volume, r.Results = "tank/vm@b", &dev.VolumeReport{Snapshot: "tank/vm@b", UpToDate: true}, nil
		}, nil, "tank/vm@b -> /b: up to date\n", ""},
		{"complete except unreadable blocks", func(r *dev.Report) {
			r.Results[1].BadRanges = []device.Range{{Start: 512, Length: 1024}}
		}, errors.New("1024 bytes in 1 place"),
			"/dev/a -> /b: 64 MiB in 4.0 s (20 MiB/s), 1.0 KiB unreadable, try 2, read back and verified\nBLAKE3 d1\n", "unreadable: bytes 512 to 1536\n"},
		{"interrupted after unreadable blocks", func(r *dev.Report) {
			r.Results[1].BadRanges, r.Results[1].Error = []device.Range{{Start: 512, Length: 1024}}, "cut"
		}, errors.New("cut"), "", "unreadable: bytes 512 to 1536\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			r := copied()
			tt.change(r)
			require.NoError(t, NewText(Options{Stdout: &stdout, Stderr: &stderr}).Done(r, tt.err, DeviceResult(r)))
			require.Equal(t, tt.stdout, stdout.String())
			require.Equal(t, tt.stderr, stderr.String())
		})
	}
}
