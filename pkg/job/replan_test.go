package job

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/wire"
)

// What is not encrypted below an encrypted replica is planned after a cut as it
// was before: the replica's key is not on the target.
func TestPlainBelowEncryptedReplicaAfterACut(t *testing.T) {
	t.Parallel()
	w := newWorld(map[string][]string{"src": nil, "src/a": {"x"}, "src/a/plain": {"x", "y"}, "dst": nil})
	w.set("src/a", "encryption", "aes-256-gcm")
	w.set("src/a/plain", "encryption", "off")
	w.feature = "encryption"
	cuts := map[string]int{}
	w.refuse = func(target string) error {
		if copied := w.datasets["dst/a"]; copied != nil && copied.Properties["encryption"].Value == "" {
			w.set("dst/a", "encryption", "aes-256-gcm")
			w.set("dst/a", "keystatus", "unavailable")
		}
		if cuts[target]++; cuts[target]%2 == 1 && target == "dst/a/plain" { // each of its streams, once
			return wire.ErrCut
		}
		return nil
	}
	_, err := RunSend(t.Context(), request(func(s *Send) { s.Retries = 2 }), hosts.New(w), silent{})
	require.NoError(t, err)
	require.Equal(t, []string{"receive dst/a", "receive dst/a/plain", "receive dst/a/plain"}, w.did)
	require.Equal(t, "off", w.received["dst/a/plain"]["encryption"])
}
