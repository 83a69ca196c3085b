package hosts

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// packed returns the JSON of an archive of n zero bytes.
func packed(t *testing.T, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	text, err := json.Marshal(b.Bytes())
	require.NoError(t, err)
	return text
}

func TestArchive(t *testing.T) {
	t.Parallel()
	for _, a := range []Archive{nil, {}, Archive("-- etc/os-release --\n"), Archive(strings.Repeat("x\n", 10_000))} {
		text, err := json.Marshal(a)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), 100+len(a)/10)
		var back Archive
		require.NoError(t, json.Unmarshal(text, &back))
		require.Equal(t, a, back)
	}
	var back Archive
	require.NoError(t, json.Unmarshal(packed(t, maxArchive), &back))
	require.Len(t, back, maxArchive)
}

// TestHostileArchive covers archives that a lying host may send. A small one may expand to gigabytes.
func TestHostileArchive(t *testing.T) {
	t.Parallel()
	whole := packed(t, 1000)
	cut, err := json.Marshal([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1})
	require.NoError(t, err)
	for text, want := range map[string]string{
		string(packed(t, maxArchive+1)): "more than 33554432 bytes",
		`"LS0gYSAtLQotLSBiIC0tCg=="`:    "gzip: invalid header",
		string(cut):                     "unexpected EOF",
		`"%"`:                           "illegal base64",
		`{}`:                            "cannot unmarshal",
		string(whole[:len(whole)-1]):    "unexpected end of JSON input",
	} {
		var back Archive
		require.ErrorContains(t, json.Unmarshal([]byte(text), &back), want)
		require.Empty(t, back)
	}
}
