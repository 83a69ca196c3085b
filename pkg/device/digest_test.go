package device

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"lukechampine.com/blake3"

	"zxfer/pkg/transfer"
)

func TestDigestOfTheFirstBytes(t *testing.T) {
	t.Parallel()
	const block = 1 << 16
	content := make([]byte, 3*block+5000)
	for i := range content {
		content[i] = byte(i % 251)
	}
	clear(content[block : 2*block])
	name := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(name, content, 0o600))
	facts, err := Inspect(t.Context(), name)
	require.NoError(t, err)
	for _, size := range []int64{0, 1, block, 2*block - 1, 2 * block, 3*block + 4097, int64(len(content)), int64(len(content)) + 1} {
		q := DigestQuery{Device: facts, Size: size, Options: Options{Options: transfer.Options{Block: block}}}
		d, err := DigestOf(t.Context(), q, nil)
		require.NoError(t, err)
		part := content
		if size > 0 {
			part = content[:min(size, int64(len(content)))]
		}
		want := blake3.Sum256(part)
		require.Equal(t, hex.EncodeToString(want[:]), d.Result.Device.SourceDigest, "%d", size)
		require.Len(t, d.Parts, (len(part)+block-1)/block)
	}
}
