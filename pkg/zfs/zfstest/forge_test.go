package zfstest

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs"
)

// TestRebuiltStreamsAreIdentical parses captured streams and builds them again, and expects the same
// bytes, including checksums. Otherwise, tests with forged streams could fail for a wrong reason.
func TestRebuiltStreamsAreIdentical(t *testing.T) {
	t.Parallel()
	samples, err := filepath.Glob(testenv.Data(t, "zfs-2.3.9", "streams", "*.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, samples)
	for _, name := range samples {
		f, err := os.Open(name)
		require.NoError(t, err)
		z, err := gzip.NewReader(f)
		require.NoError(t, err)
		want, err := io.ReadAll(z)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		s := ParseStream(t, want)
		require.True(t, bytes.Equal(want, s.Bytes()), name)
		if strings.Contains(name, "-range") {
			head := s.Begin(0)
			again := Package(head.ToName(), nil, head.u64(atVersion)>>2, s.Streams()...)
			again[0].Payload = head.Payload
			require.True(t, bytes.Equal(want, again.Bytes()), name)
			require.Len(t, s.Streams(), 2, name)
		}
		swapped := zfs.NewStreamReader(bytes.NewReader(s.Swapped()))
		for i := range s {
			r, err := swapped.Next()
			require.NoError(t, err, "%s: record %d", name, i)
			require.Equal(t, s[i].Type(), r.Type)
			payload, err := swapped.Payload()
			require.NoError(t, err)
			require.True(t, bytes.Equal(s[i].Payload, payload), "%s: record %d", name, i)
			if r.Type == zfs.RecordBegin {
				require.Equal(t, s[i].ToGUID(), r.ToGUID())
			}
		}
	}
}

// TestForgedList expects the encoding that nvlist_pack(NV_ENCODE_XDR) writes: encoded and decoded
// sizes, and name, type, count and value of each pair.
func TestForgedList(t *testing.T) {
	t.Parallel()
	l := List{{"tosnap", "b"}, {"not_recursive", nil}, {"fss", List{{"0x1", List{{"parentfromsnap", uint64(7)}}}}}}
	require.Equal(t, strings.Join([]string{
		"01010000", "00000000", "00000001",
		"00000024", "00000020", "00000006", hex.EncodeToString([]byte("tosnap")), "0000", "00000009", "00000001", "00000001", "62000000",
		"00000024", "00000020", "0000000d", hex.EncodeToString([]byte("not_recursive")), "000000", "00000001", "00000000",
	}, ""), hex.EncodeToString(l.XDR())[:2*(12+72)])
	require.Equal(t, make([]byte, 8), l.XDR()[len(l.XDR())-8:])
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	token, err := zfs.ParseToken(Token("tank/a@x", 7, 8, "rawok", "savedok"))
	require.NoError(t, err)
	require.Equal(t, zfs.Token{ToGUID: 7, ToName: "tank/a@x", FromGUID: 8, Object: 1, Flags: zfs.StreamFlags{Raw: true}, Saved: true}, token)
}
