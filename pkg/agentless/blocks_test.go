package agentless

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfstest"
)

// TestBlocksOfAgentlessCopy expects that this process selects the blocks of a stream from a host without
// zxfer, and that a truncated stream has no end.
func TestBlocksOfAgentlessCopy(t *testing.T) {
	t.Parallel()
	stream := zfstest.New("pool/a@x", 7, 0, false)
	for i := range uint64(8) {
		stream = stream.Written(i*zfstest.WrittenBlock, random(1024))
	}
	file := filepath.Join(t.TempDir(), "stream")
	_, h := openAccount(t, accountNamed("sh"), "case $1 in send) cat "+file+"\nesac")
	for _, missing := range []int{0, 100} {
		b := stream.Bytes()
		require.NoError(t, os.WriteFile(file, b[:len(b)-missing], 0o600))
		src, err := h.Through(nil, 0).OpenFrom(t.Context(), hosts.SendStream{
			Spec: zfs.SendSpec{Dataset: "pool/a", To: "x"}, Only: zfs.Blocks{{Object: 1, First: 3, Count: 2}}})
		require.NoError(t, err)
		got, err := io.ReadAll(src)
		require.NoError(t, src.Close())
		if missing > 0 {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.LessOrEqual(t, len(got), 4*zfs.RecordSize+2*1024, "no END record")
			continue
		}
		require.NoError(t, err)
		require.Len(t, zfstest.ParseStream(t, got), 5, "BEGIN, OBJECT, two WRITE and END records")
	}
}
