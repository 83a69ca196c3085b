package netcat

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/transfer"
	"zxfer/pkg/transfer/transfertest"
	"zxfer/pkg/zfs"
)

func TestAStreamFromThereIsASource(t *testing.T) {
	t.Parallel()
	opened := func(t *testing.T, zfsSend string, content []byte) transfer.Source {
		dir, h := open(t, anyNC(t), "[ $1 != send ] || { "+zfsSend+"; }")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "stream"), content, 0o600))
		src, err := h.openSend(t.Context(), zfs.SendSpec{Dataset: "pool/a", To: "x"}, offer(), 0)
		require.NoError(t, err)
		return src
	}
	whole := random(3_000_000)
	transfertest.SourceConforms(t, transfertest.Sources{
		Whole: func(t *testing.T) (transfer.Source, []byte) { return opened(t, "cat stream", whole), whole },
		Failing: func(t *testing.T) (transfer.Source, error) {
			return opened(t, `head -c 5000 stream; echo "warning: cannot send 'pool/a@x': Input/output error" >&2; exit 1`, whole),
				&zfs.Error{Kind: zfs.PoolFault}
		},
		Endless: func(t *testing.T) transfer.Source { return opened(t, "exec yes", nil) },
	})
}

func TestAStreamToThereIsASink(t *testing.T) {
	t.Parallel()
	whole := random(3_000_000)
	opened := func(t *testing.T, zfsReceive string) (string, transfer.Sink) {
		dir, h := open(t, anyNC(t), "[ $1 != receive ] || { "+zfsReceive+"; }")
		sink, err := h.openReceive(t.Context(), zfs.ReceiveSpec{Target: "pool/a"}, offer(), 0)
		require.NoError(t, err)
		return filepath.Join(dir, "whole"), sink
	}
	transfertest.SinkConforms(t, transfertest.Sinks{
		Stream: whole,
		Sink: func(t *testing.T) (transfer.Sink, func() ([]byte, bool)) {
			stored, sink := opened(t, fmt.Sprintf(`cat >part; [ $(wc -c <part) = %d ] && mv part whole || { echo "cannot receive resume stream: incomplete stream" >&2; exit 1; }`, len(whole)))
			return sink, func() ([]byte, bool) {
				b, err := os.ReadFile(stored)
				return b, err == nil
			}
		},
		Full: func(t *testing.T) (transfer.Sink, error) {
			_, sink := opened(t, `head -c 1000 >/dev/null; echo "cannot receive new filesystem stream: out of space" >&2; exit 1`)
			return sink, &zfs.Error{Kind: zfs.NoSpace}
		},
	})
}
