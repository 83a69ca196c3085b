package zfsmem_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/cli"
	"zxfer/pkg/zfs/zfsmem"
)

func host() (*zfsmem.Host, zfs.SendSpec, zfs.Arrival) {
	h := zfsmem.New("tank/a", "pool")
	h.Write("tank/a", make([]byte, 3<<20))
	_ = h.Snapshot(context.Background(), []string{"tank/a@x"})
	return h, zfs.SendSpec{Dataset: "tank/a", To: "x"}, zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "x", GUID: h.Versions("tank/a")[0].GUID}}}
}

func TestReceiveIsASink(t *testing.T) {
	t.Parallel()
	src, err := func() (cli.Stream, error) { h, spec, _ := host(); return h.OpenSend(t.Context(), spec) }()
	require.NoError(t, err)
	whole, err := io.ReadAll(src)
	require.NoError(t, err)
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: whole,
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			h, _, arrival := host()
			sink, err := h.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/b", Arrival: arrival})
			require.NoError(t, err)
			return sink, func() ([]byte, bool) { return whole, len(h.Versions("pool/b")) > 0 }
		},
		Full: func(t *testing.T) (transfer.Sink, error) {
			h, _, arrival := host()
			h.Set("pool", "quota", "1048576")
			sink, err := h.OpenReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/b", Arrival: arrival})
			require.NoError(t, err)
			return sink, &zfs.Error{Kind: zfs.NoSpace}
		},
	})
}
