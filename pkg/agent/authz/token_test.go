package authz

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
	"zxfer/pkg/zfs/zfstest"
)

// tokens returns a host with snapshots and bookmarks, and their GUIDs by name.
func tokens(t *testing.T) (h *zfsmem.Host, guids map[string]uint64) {
	t.Helper()
	h, guids = zfsmem.New("tank/vm", "tank/other", "tank/enc"), map[string]uint64{}
	ctx := t.Context()
	require.NoError(t, h.Snapshot(ctx, []string{"tank/vm@a"}))
	require.NoError(t, h.Bookmark(ctx, map[string]string{"tank/vm#m": "tank/vm@a"}))
	require.NoError(t, h.Destroy(ctx, []string{"tank/vm@a"}))
	require.NoError(t, h.Snapshot(ctx, []string{"tank/vm@b", "tank/vm@c", "tank/other@x", "tank/enc@x"}))
	h.Clone("tank/vm@b", "tank/clone")
	h.Clone("tank/other@x", "tank/foreign")
	h.Clone("tank/enc@x", "tank/enc/clone")
	require.NoError(t, h.Snapshot(ctx, []string{"tank/clone@x", "tank/foreign@x", "tank/enc/clone@x"}))
	h.Set("tank/enc", "encryption", "aes-256-gcm")
	h.Set("tank/enc/clone", "encryption", "aes-256-gcm")
	for _, name := range []string{"tank/vm", "tank/other", "tank/enc", "tank/clone", "tank/foreign", "tank/enc/clone"} {
		for _, v := range h.Versions(name) {
			guids[v.In(name)] = v.GUID
		}
	}
	return h, guids
}

// TestTokenIsLimitedToGrantedVersions expects that a resume token may only name versions of a granted
// dataset, because the client can forge it.
func TestTokenIsLimitedToGrantedVersions(t *testing.T) {
	t.Parallel()
	const none = "none" // is a GUID that no version has
	for name, tt := range map[string]struct {
		toName, to, from string
		flags            []string
		refused          string
	}{
		"full send":                            {toName: "tank/vm@c", to: "tank/vm@c"},
		"incremental send from a snapshot":     {toName: "tank/vm@c", to: "tank/vm@c", from: "tank/vm@b"},
		"incremental send from a bookmark":     {toName: "tank/vm@c", to: "tank/vm@c", from: "tank/vm#m"},
		"renamed snapshot":                     {toName: "tank/vm@old", to: "tank/vm@c"},
		"clone":                                {toName: "tank/clone@x", to: "tank/clone@x", from: "tank/vm@b"},
		"clone with another origin":            {toName: "tank/clone@x", to: "tank/clone@x", from: "tank/vm@c", refused: "no snapshot or bookmark with the GUID"},
		"clone of a dataset without a grant":   {toName: "tank/foreign@x", to: "tank/foreign@x", from: "tank/other@x", refused: "no snapshot or bookmark with the GUID"},
		"dataset without a grant":              {toName: "tank/other@x", to: "tank/other@x", refused: "not permit access to"},
		"snapshot of another dataset":          {toName: "tank/vm@c", to: "tank/other@x", refused: "no snapshot with its GUID"},
		"bookmark as snapshot":                 {toName: "tank/vm@a", to: "tank/vm#m", refused: "no snapshot with its GUID"},
		"unknown snapshot":                     {toName: "tank/vm@c", to: none, refused: "no snapshot with its GUID"},
		"unknown incremental source":           {toName: "tank/vm@c", to: "tank/vm@c", from: none, refused: "no snapshot or bookmark with the GUID"},
		"incremental source elsewhere":         {toName: "tank/vm@c", to: "tank/vm@c", from: "tank/other@x", refused: "no snapshot or bookmark with the GUID"},
		"missing dataset":                      {toName: "tank/vm/gone@c", to: "tank/vm@c", refused: "tank/vm/gone"},
		"name with a granted prefix":           {toName: "tank/vm2@c", to: "tank/vm@c", refused: "not permit access to"},
		"path with ..":                         {toName: "tank/vm/../other@x", to: "tank/other@x", refused: `".."`},
		"no name":                              {toName: "", to: "tank/vm@c", refused: "resume token"},
		"no snapshot name":                     {toName: "tank/vm", to: "tank/vm@c", refused: "resume token"},
		"partial stream":                       {toName: "tank/vm@c", to: "tank/vm@c", flags: []string{"savedok"}, refused: "partial or redacted"},
		"redacted stream":                      {toName: "tank/vm@c", to: "tank/vm@c", flags: []string{"redact_snaps"}, refused: "partial or redacted"},
		"raw stream of an encrypted dataset":   {toName: "tank/enc@x", to: "tank/enc@x", flags: []string{"rawok"}},
		"plain stream of an encrypted clone":   {toName: "tank/enc/clone@x", to: "tank/enc/clone@x", from: "tank/enc@x", refused: "tank/enc/clone is encrypted"},
		"plain stream of an encrypted dataset": {toName: "tank/enc@x", to: "tank/enc@x", refused: "tank/enc is encrypted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, guids := tokens(t)
			guids[none] = 1 << 40
			require.NotZero(t, guids[tt.to])
			require.True(t, tt.from == "" || guids[tt.from] != 0)
			p, err := Parse([]string{"send=tank/vm", "send=tank/clone", "send=tank/foreign", "send=tank/enc"}, nil, true)
			require.NoError(t, err)
			spec := zfs.SendSpec{Dataset: "tank/vm", Flags: zfs.StreamFlags{Raw: true}, // the token decides
				Token: zfstest.Token(tt.toName, guids[tt.to], guids[tt.from], tt.flags...)}
			err = mayEstimate(t.Context(), NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {}), &[]zfs.SendSpec{spec})
			if tt.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.refused)
			}
		})
	}
}

// TestEveryOperationChecksTokens sends two tokens in each request with a token field, and expects
// refusals. One is for a plain stream of an encrypted dataset, the other is an invalid string.
func TestEveryOperationChecksTokens(t *testing.T) {
	t.Parallel()
	h, guids := tokens(t)
	h.Set("tank/vm", "encryption", "off")
	p, err := Parse([]string{"send=tank"}, nil, true)
	require.NoError(t, err)
	for token, says := range map[string]string{
		zfstest.Token("tank/enc@x", guids["tank/enc@x"], 0): "--allow send-decrypted=tank/enc",
		"1-0-0-00": "token",
	} {
		for _, dataset := range []string{"tank/enc", "tank/vm"} {
			spec := zfs.SendSpec{Dataset: dataset, To: "x", Flags: zfs.StreamFlags{Raw: true}, Token: token}
			for op, body := range map[string]any{
				"estimate": []zfs.SendSpec{spec}, "digest": spec,
				"transfer": hosts.Task{From: hosts.SendStream{Spec: spec}, To: hosts.Accept{Session: "x"}},
			} {
				text, err := json.Marshal(body)
				require.NoError(t, err)
				_, err = admit(t, NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {}), op, string(text))
				require.ErrorContains(t, err, says, "%s of %s", op, dataset)
				require.Equal(t, fault.Refused, fault.ClassOf(err), op)
			}
		}
	}
}

// TestFailedQueryIsRefused expects the guard to refuse a request if it cannot query the host.
func TestFailedQueryIsRefused(t *testing.T) {
	t.Parallel()
	_, guids := tokens(t)
	p, err := Parse([]string{"send=tank", "restore=tank", "receive=vault", "drill=tank"}, nil, false)
	require.NoError(t, err)
	failed := errors.New("pool is suspended")
	token := zfs.SendSpec{Dataset: "tank/vm", Token: zfstest.Token("tank/clone@x", guids["tank/clone@x"], guids["tank/vm@b"])}
	plain := zfs.SendSpec{Dataset: "tank/vm", To: "c"}
	dataset, parent, aside := "tank/vm", "vault/a/b", zfs.DrillCloneName("tank", "1")
	for name, tt := range map[string]struct {
		fails string // operation
		do    func(context.Context, *Guard) error
	}{
		"versions of a token": {zfs.OpList, func(ctx context.Context, g *Guard) error { return mayEstimate(ctx, g, &[]zfs.SendSpec{token}) }},
		"origin of a token":   {zfs.OpGet, func(ctx context.Context, g *Guard) error { return mayEstimate(ctx, g, &[]zfs.SendSpec{token}) }},
		"encryption":          {zfs.OpGet, func(ctx context.Context, g *Guard) error { return mayEstimate(ctx, g, &[]zfs.SendSpec{plain}) }},
		"mark of a restore": {zfs.OpGet, func(ctx context.Context, g *Guard) error {
			return mayMount(ctx, g, &zfs.MountRequest{Dataset: dataset})
		}},
		"root of a grant": {zfs.OpGet, func(ctx context.Context, g *Guard) error { return mayCreateParents(ctx, g, &parent) }},
		"target of a restore": {zfs.OpGet, func(ctx context.Context, g *Guard) error {
			return g.checkReceive(ctx, &zfs.ReceiveSpec{Target: dataset})
		}},
		"origin of a drill's copy": {zfs.OpGet, func(ctx context.Context, g *Guard) error { _, err := g.drillOrigin(ctx, aside); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, _ := tokens(t)
			h.Around = func(_ context.Context, op string, _ []string, do func() error) error {
				if op == tt.fails {
					return failed
				}
				return do()
			}
			g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
			require.ErrorIs(t, tt.do(t.Context(), g), failed)
		})
	}
}

// TestRequestTokensAreBounded expects that the number of resume tokens of one request is
// limited, not the number of streams.
func TestRequestTokensAreBounded(t *testing.T) {
	t.Parallel()
	h, guids := tokens(t)
	p, err := Parse([]string{"send=tank"}, nil, true)
	require.NoError(t, err)
	g := NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {})
	token := zfs.SendSpec{Dataset: "tank/vm", Token: zfstest.Token("tank/vm@c", guids["tank/vm@c"], 0, "rawok")}
	all := append(slices.Repeat([]zfs.SendSpec{{Dataset: "tank/vm", To: "c"}}, 10), slices.Repeat([]zfs.SendSpec{token}, maxTokens)...)
	require.NoError(t, mayEstimate(t.Context(), g, &all))
	all = append(all, token)
	require.ErrorContains(t, mayEstimate(t.Context(), g, &all), "1001 resume tokens, more than")
}
