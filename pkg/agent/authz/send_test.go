package authz

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// encrypted returns a host with datasets and their encryption roots: "-" if not
// encrypted, "" if unknown. It counts queries.
func encrypted(roots map[string]string) (host *hosts.Local, looks *int) {
	h, looks := zfsmem.New(), new(int)
	for name, root := range roots {
		algorithm := "aes-256-gcm"
		switch root {
		case "-":
			algorithm = "off"
		case "":
			algorithm = ""
		}
		h.Create(name, map[string]string{"encryption": algorithm, "encryptionroot": root})
	}
	h.Around = func(_ context.Context, _ string, _ []string, do func() error) error {
		*looks++
		return do()
	}
	return hosts.On(h, "test", func(string) {}), looks
}

// TestSendGrantIsRawOnlyIfEncrypted expects that a send grant permits only raw streams of
// encrypted datasets. Otherwise, the key could read their plain text while the encryption key is
// loaded.
func TestSendGrantIsRawOnlyIfEncrypted(t *testing.T) {
	t.Parallel()
	host := map[string]string{
		"tank": "-", "tank/plain": "-", "tank/enc": "tank/enc", "tank/enc/child": "tank/enc", "tank/odd": "",
		"tank/open": "tank/open", "tank/open/a": "tank/open",
		"vault/web": "vault/web", "vault/web/came-plain": "vault/web", "vault/web/came-raw": "vault/web/came-raw",
		"both": "both", "both/a": "both",
	}
	grants := []string{"send=tank", "send-decrypted=tank/open", "receive=vault/web", "send=both", "receive=both"}
	for name, c := range map[string]struct {
		op, dataset string
		raw         bool
		refused     string
	}{
		"plain":                              {"estimate", "tank/plain", false, ""},
		"raw":                                {"estimate", "tank/enc", true, ""},
		"plain text":                         {"estimate", "tank/enc", false, "--allow send-decrypted=tank/enc in authorized_keys"},
		"plain text of a child":              {"transfer", "tank/enc/child", false, "only raw streams of it are permitted"},
		"its digest":                         {"digest", "tank/enc", false, "only digests of raw streams"},
		"its raw digest":                     {"digest", "tank/enc", true, ""},
		"unknown encryption":                 {"transfer", "tank/odd", false, "tank/odd is encrypted"},
		"a dataset that does not exist":      {"transfer", "tank/none", false, "tank/none does not exist"},
		"granted plain text":                 {"transfer", "tank/open/a", false, ""},
		"granted digest":                     {"digest", "tank/open", false, ""},
		"digest of a dataset received plain": {"digest", "vault/web/came-plain", false, ""},
		"digest of a dataset received raw":   {"digest", "vault/web/came-raw", false, "only digests"},
		"digest of the granted dataset":      {"digest", "vault/web", false, "only digests"},
		"digest with both grants":            {"digest", "both/a", false, "only digests"},
		"plain text of a received dataset":   {"transfer", "vault/web/came-plain", false, "permit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Parse(grants, nil, true)
			require.NoError(t, err)
			h, looks := encrypted(host)
			spec := zfs.SendSpec{Dataset: c.dataset, To: "a", Flags: zfs.StreamFlags{Raw: c.raw}}
			body := map[string]any{"estimate": []zfs.SendSpec{spec}, "digest": spec, "transfer": hosts.Task{From: hosts.SendStream{Spec: spec}, To: hosts.Accept{Session: "x"}}}[c.op]
			raw, err := json.Marshal(body)
			require.NoError(t, err)
			_, err = admit(t, NewGuard(p, h, func(string) {}), c.op, string(raw))
			if c.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.refused)
				require.Equal(t, fault.Refused, fault.ClassOf(err))
			}
			if c.raw {
				require.Zero(t, *looks, "a raw stream needs no query")
			}
		})
	}
}

// TestEncryptionIsQueriedOnce expects that estimates of a whole tree need one query.
func TestEncryptionIsQueriedOnce(t *testing.T) {
	t.Parallel()
	h, looks := encrypted(map[string]string{"tank/a": "-", "tank/b": "-"})
	p, err := Parse([]string{"send=tank"}, nil, true)
	require.NoError(t, err)
	_, err = admit(t, NewGuard(p, h, func(string) {}), "estimate",
		`[{"dataset":"tank/a","to":"x","flags":{}},{"dataset":"tank/a","to":"y","flags":{}},{"dataset":"tank/b","to":"x","flags":{}}]`)
	require.NoError(t, err)
	require.Equal(t, 1, *looks)
}
