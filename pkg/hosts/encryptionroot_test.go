package hosts

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestInheritKeyWithLyingSource uses a source that falsely claims that a copy has the key of its
// parent's encryption root. It expects that the copy joins only its parent's root, and never a key
// of this host or a key of another kind.
func TestInheritKeyWithLyingSource(t *testing.T) {
	t.Parallel()
	const root, copied = "vault/b", "vault/b/c"
	for name, tt := range map[string]struct {
		root, copied map[string]string // properties
		raw          bool              // the root came as a raw stream
		claim        string            // the root that the source claims, "" = root
		joins        bool
	}{
		"root received raw, key not loaded": {raw: true, joins: true},
		"root received raw, key loaded":     {root: map[string]string{"keystatus": "available"}, raw: true, joins: true},
		"restored root, key not loaded":     {joins: true},
		"local root, key loaded":            {root: map[string]string{"keystatus": "available"}},
		"local root, key in a file":         {root: map[string]string{"keylocation": "file:///etc/key"}},
		"local root, key at a URL":          {root: map[string]string{"keylocation": "https://keys.example.org/k"}},
		"passphrase of the root only":       {root: map[string]string{"keyformat": "passphrase", "pbkdf2salt": "7", "pbkdf2iters": "350000"}, raw: true},
		"passphrase with another salt":      {root: map[string]string{"keyformat": "passphrase", "pbkdf2salt": "7"}, copied: map[string]string{"keyformat": "passphrase", "pbkdf2salt": "8"}, raw: true},
		"another key format":                {copied: map[string]string{"keyformat": "hex"}, raw: true},
		"invalid key format":                {copied: map[string]string{"keyformat": "none"}, raw: true},
		"key of the copy loaded":            {copied: map[string]string{"keystatus": "available"}, raw: true},
		"key of the copy on this host":      {copied: map[string]string{"keylocation": "file:///etc/key"}, raw: true},
		"copy is a clone":                   {copied: map[string]string{"origin": "vault/x@a"}, raw: true},
		"copy is partially received":        {copied: map[string]string{"inconsistent": "1"}, raw: true},
		"copy not encrypted":                {copied: map[string]string{"encryption": "off", "encryptionroot": "", "keyformat": ""}, raw: true},
		"root not encrypted":                {root: map[string]string{"encryption": "off", "encryptionroot": "", "keyformat": ""}},
		"another dataset as root":           {raw: true, claim: "vault/other"},
		"name with ..":                      {raw: true, claim: "vault/b/../other"},
		"no name":                           {raw: true, claim: " "},
		"copy as its own root":              {raw: true, claim: copied, joins: false},
		"flags without a raw stream":        {root: map[string]string{"keystatus": "available", zfs.FlagsProperty: "Lc"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := zfsmem.New()
			of := func(name string, more map[string]string) {
				p := map[string]string{"encryption": "aes-256-gcm", "encryptionroot": name, "keystatus": "unavailable", "keyformat": "raw", "keylocation": "prompt"}
				maps.Copy(p, more)
				h.Create(name, p)
			}
			of("vault/other", nil)
			of(root, tt.root)
			of(copied, tt.copied)
			if tt.raw {
				h.Set(root, zfs.FlagsProperty, "w")
			}
			before := h.Get(copied, "encryptionroot")
			take := zfs.AssertedKey{Dataset: copied, Root: root}
			if tt.claim != "" {
				take.Root = tt.claim
			}
			err := On(h, "test", func(string) {}).InheritKeyAsserted(t.Context(), take)
			if tt.joins {
				require.NoError(t, err)
				require.Equal(t, root, h.Get(copied, "encryptionroot"))
				return
			}
			if take.Root != before { // otherwise nothing changes
				require.Equal(t, fault.Refused, fault.ClassOf(err), "%v", err)
				require.ErrorContains(t, err, copied)
			}
			require.Equal(t, before, h.Get(copied, "encryptionroot"))
		})
	}
	err := On(zfsmem.New("vault"), "test", func(string) {}).InheritKeyAsserted(t.Context(), zfs.AssertedKey{Dataset: "vault/gone", Root: "vault"})
	require.ErrorIs(t, err, &zfs.Error{Kind: zfs.NotFound})
}
