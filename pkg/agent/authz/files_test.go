package authz

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/files"
	"zxfer/pkg/hosts"
)

// TestReadFilesNeedsPlainTextGrant expects that files may be read from snapshots that may
// be sent. For encrypted datasets, a grant must include their plain text.
func TestReadFilesNeedsPlainTextGrant(t *testing.T) {
	t.Parallel()
	h, _ := encrypted(map[string]string{"tank/plain": "-", "tank/enc": "tank/enc", "tank/open": "tank/open", "vault/a": "-"})
	p, err := Parse([]string{"send=tank", "send-decrypted=tank/open", "receive=vault"}, nil, true)
	require.NoError(t, err)
	for name, c := range map[string]struct{ snapshot, keyFile, refused string }{
		"plain":                         {"tank/plain@x", "", ""},
		"encrypted":                     {"tank/enc@x", "", "tank/enc is encrypted"},
		"granted":                       {"tank/open@x", "", ""},
		"received dataset":              {"vault/a@x", "", "permit"},
		"dataset instead of a snapshot": {"tank/plain", "", "snapshot"},
		"with a key":                    {"tank/open@x", "/etc/zxfer/key", "this key does not permit naming a key file"},
	} {
		for op, args := range map[string]any{
			"read-files": files.Query{Snapshot: c.snapshot, KeyFile: c.keyFile, Sample: 1},
			"transfer":   hosts.Task{From: hosts.SendFiles{Archive: files.Archive{Snapshot: c.snapshot, KeyFile: c.keyFile, Paths: []string{"a"}}}, To: hosts.Accept{Session: "s"}},
		} {
			body, err := json.Marshal(args)
			require.NoError(t, err)
			_, err = admit(t, NewGuard(p, h, func(string) {}), op, string(body))
			if c.refused == "" {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorContains(t, err, c.refused, name)
			require.Equal(t, fault.Refused, fault.ClassOf(err))
		}
	}
}
