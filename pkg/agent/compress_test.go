package agent

import (
	"bytes"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
)

// compressed returns the stream of an agent that writes text.
func compressed(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	c, err := newCompressor(&b)
	require.NoError(t, err)
	n, err := io.WriteString(c, text)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
	return b.String()
}

// randomText returns n characters that can hardly be compressed to less than 3/4.
func randomText(n int) string {
	random := rand.NewChaCha8([32]byte{1})
	raw := make([]byte, n)
	_, _ = random.Read(raw)
	return base64.StdEncoding.EncodeToString(raw)[:n]
}

// TestAnswersAreCompressed expects that a repetitive answer takes few bytes, and its repetition even fewer.
func TestAnswersAreCompressed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		g := start(t, newHost(nil))
		text := randomText(20 << 10)
		g.host.zfs.Set("tank/a", "org.example:random", text)
		ask := func() int64 {
			before := g.line.read.Load()
			got, err := hosts.Call(t.Context(), g, hosts.OpProperties, hosts.PropertyQuery{Names: []string{"tank/a"}, Properties: nil})
			require.NoError(t, err)
			require.Equal(t, text, got["tank/a"]["org.example:random"].Value)
			return g.line.read.Load() - before
		}
		first, second := ask(), ask()
		require.Less(t, first, int64(len(text)*9/10))
		require.Less(t, second, int64(len(text)/10))
	})
}

// TestCompressedBombIsSkipped sends a few kilobytes that expand to a log line of the maximum length of
// messages. The client skips it, and takes the next message.
func TestCompressedBombIsSkipped(t *testing.T) {
	t.Parallel()
	r := lyingAgent(t, func(m *message) [][]byte {
		bomb := []byte(`{"kind":"log","text":"` + strings.Repeat("x", hosts.MaxAnswer-100) + `"}`)
		return append([][]byte{bomb}, answer(m, `{"hostname":"beta"}`)...)
	})
	facts, err := hosts.Call(t.Context(), r, hosts.OpFacts, hosts.None{})
	require.NoError(t, err)
	require.Equal(t, "beta", facts.Hostname)
	require.NoError(t, r.Close())
}
