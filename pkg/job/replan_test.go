package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/transport/tcp"
)

// What is not encrypted below an encrypted replica is planned after a cut as it
// was before: the replica's key is not on the target.
func TestPlainBelowEncryptedReplicaAfterACut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, map[string][]string{"src": nil, "src/a": {"x"}, "src/a/plain": {"x", "y"}, "dst": nil})
	w.host.Set("src/a", "encryption", "aes-256-gcm")
	w.host.Set("src/a/plain", "encryption", "off")
	cuts := 0
	w.before = func(op string) error {
		if op == "receive dst/a/plain" {
			if cuts++; cuts%2 == 1 { // each of its streams, once
				return tcp.ErrCut
			}
		}
		return nil
	}
	_, err := RunSend(t.Context(), request(func(s *Send) { s.Retries = 2 }), hosts.New(w), silent{})
	require.NoError(t, err)
	require.Equal(t, []string{"receive dst/a@x", "receive dst/a/plain@x", "receive dst/a/plain@y"}, w.did)
	require.Equal(t, "off", w.host.Get("dst/a/plain", "encryption"))
}
