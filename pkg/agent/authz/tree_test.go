package authz

import (
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestPartKeyGrant expects that a key that may replace a copy's key may make its dependents
// encryption roots.
func TestPartKeyGrant(t *testing.T) {
	t.Parallel()
	for grant, allowed := range map[string]bool{"receive=vault": false, "receive-rekey=vault": true, "restore=vault": false, "send=vault": false} {
		p, err := Parse([]string{grant}, nil, true)
		require.NoError(t, err)
		_, err = admit(t, NewGuard(p, hosts.On(zfsmem.New("vault/a"), "test", func(string) {}), func(string) {}), "make-encryption-root", `"vault/a"`)
		require.Equal(t, allowed, err == nil, "%s: %v", grant, err)
	}
	p, err := Parse([]string{"receive=vault"}, nil, false)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(zfsmem.New("vault/a", "other/a"), "test", func(string) {}), func(string) {})
	_, err = admit(t, g, "make-encryption-root", `"vault/a"`)
	require.NoError(t, err, "the key may also destroy it")
	_, err = admit(t, g, "make-encryption-root", `"other/a"`)
	require.Error(t, err)
}

// TestDigestOfTreeReceivedRaw expects that a key may read digests of plain text with an
// inherited key only if the key belongs to this host. A tree received raw with one encryption root
// remains secret.
func TestDigestOfTreeReceivedRaw(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("vault", "vault/in", "vault/in/a")
	h.Set("vault/in/a", "encryption", "aes-256-gcm")
	p, err := Parse([]string{"receive=vault/in"}, nil, true)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
	for root, known := range map[string]bool{"vault": true, "vault/in": false, "vault/in/a": false} {
		h.Set("vault/in", zfs.FlagsProperty, "w")
		h.Set("vault/in/a", "encryptionroot", root)
		_, err = admit(t, g, "digest", `{"dataset":"vault/in/a","to":"x","flags":{}}`)
		require.Equal(t, known, err == nil, "%s: %v", root, err)
	}
	h.Set("vault/in/a", "encryptionroot", "elsewhere")
	_, err = admit(t, g, "digest", `{"dataset":"vault/in/a","to":"x","flags":{}}`)
	require.ErrorContains(t, err, "only digests of raw streams", "the root is not an ancestor")
	p, err = Parse([]string{"restore=vault/in"}, nil, true)
	require.NoError(t, err)
	h.Set("vault/in/a", "encryptionroot", "vault")
	_, err = admit(t, NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {}), "digest", `{"dataset":"vault/in/a","to":"x","flags":{}}`)
	require.ErrorContains(t, err, "only digests of raw streams", "a restored original is secret")
}
