package agent

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/policy"
	"zxfer/pkg/site"
	"zxfer/pkg/wire"
	"zxfer/pkg/zfs"
)

// gated is a session of a restricted agent over a fake Site.
func gated(t *testing.T, appendOnly bool, grants ...string) (*session, *fakeSite, *[]string) {
	t.Helper()
	p, err := policy.Parse(grants, []string{"192.0.2.1"}, appendOnly)
	require.NoError(t, err)
	s := &fakeSite{}
	var audit []string
	c := newSession(context.Background(), s, policy.NewGuard(p, s, func(line string) { audit = append(audit, line) }))
	return c, s, &audit
}

func ask(t *testing.T, c *session, op, body string) *failure {
	t.Helper()
	var m message
	require.NoError(t, json.Unmarshal(c.answer(t.Context(), &message{ID: 1, Op: op, Body: json.RawMessage(body)})[4:], &m))
	return m.Error
}

// Every operation that the agent has, now or later, is refused for what it
// names outside of the grants; facts and host-facts name nothing.
func TestGateKnowsEveryOperation(t *testing.T) {
	t.Parallel()
	outside := map[string]string{
		opList: `{"dataset":"tank/b"}`, opDatasetOf: `"/tank/a"`, opProperties: `{"names":["tank/b"],"properties":["used"]}`,
		opEstimate: `[{"dataset":"tank/b","to":"x","flags":{}}]`, opSnapshot: `["tank/b@x"]`,
		opHold: `{"tag":"t","snapshots":["tank/b@x"]}`, opRelease: `{"tag":"zxfer:j:t","snapshots":["tank/b@x"]}`,
		opHolds: `["tank/b@x"]`, opBookmark: `{"tank/b#x":"tank/b@x"}`, opDestroy: `["tank/b@x"]`,
		opCreateParents: `"tank/b/x"`, opDiscard: `"tank/b"`, opDigest: `{"dataset":"tank/b","to":"x","flags":{}}`,
		opOffer: `{"mode":"tls","streams":1,"address":"::","deadline":1}`, opTransfer: `{"receive":{"target":"tank/b"},"options":{}}`,
	}
	for op := range operations() {
		if op == opFacts || op == opHostFacts {
			continue
		}
		c, s, audit := gated(t, false, "receive=vault", "send=tank/vm")
		body, known := outside[op]
		if !known {
			body = `{}` // an operation that came later: no rule may let it in
		}
		f := ask(t, c, op, body)
		require.NotNil(t, f, op)
		require.Equal(t, fault.Refused, f.Class, op)
		require.Contains(t, (*audit)[0], "refused", op)
		if op != opDatasetOf { // which must look to judge
			require.Nil(t, s.asked, op)
		}
	}
}

// What is admitted reaches the Site as it was judged.
func TestGateAdmits(t *testing.T) {
	t.Parallel()
	tests := []struct{ op, body string }{
		{opFacts, `{}`},
		{opHostFacts, `{}`},
		{opList, `{"dataset":"vault/a","recursive":true}`},
		{opProperties, `{"names":["vault/a@x","tank"],"properties":["guid"]}`},
		{opEstimate, `[{"dataset":"tank/vm/x","from":"#b","to":"x","flags":{"raw":true}}]`},
		{opSnapshot, `["tank/vm@x"]`},
		{opHold, `{"tag":"t","snapshots":["vault/a@x"]}`},
		{opRelease, `{"tag":"zxfer:j:t","snapshots":["vault/a@x"]}`},
		{opBookmark, `{"tank/vm#x":"tank/vm@x"}`},
		{opDigest, `{"dataset":"vault/a","from":"@w","to":"x","flags":{"raw":true}}`},
		{opDiscard, `"vault/a"`},
		{opOffer, `{"mode":"tls","streams":4,"address":"10.0.0.1","peer":"192.0.2.1","deadline":30000000000}`},
		{opTransfer, `{"send":{"dataset":"tank/vm","to":"x","flags":{"raw":true}},"offered":"ab","options":{}}`},
	}
	for _, tt := range tests {
		c, s, _ := gated(t, true, "receive=vault", "send=tank/vm")
		require.Nil(t, ask(t, c, tt.op, tt.body), tt.op)
		require.NotNil(t, s.asked, tt.op)
	}
}

// A rule that decodes less than the operation does would refuse honest clients.
func TestGateKnowsEveryField(t *testing.T) {
	t.Parallel()
	c, s, _ := gated(t, true, "receive=vault", "send=tank/vm")
	full := site.Task{
		Receive: &zfs.ReceiveSpec{Target: "vault/a", Origin: "vault/o@x", Set: map[string]string{"readonly": "on"}, KeepKey: true,
			Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "a", GUID: 8}}, Base: 9, Volume: false, Raw: true, Resumed: true}},
		Ticket: &wire.Ticket{Mode: wire.TLS, Address: "192.0.2.1:7", Session: "s", Secret: []byte{1}, Streams: 2, Window: 3, Deadline: 4,
			ServerPin: []byte{5}, ClientCert: []byte{6}, ClientKey: []byte{7}},
	}
	full.Options.Buffer, full.Options.Block, full.Options.BandLimit, full.Options.Compress, full.Options.CompressThreads, full.Options.Stall = 1, 2, 3, "zstd", 1, 5
	body, err := json.Marshal(full)
	require.NoError(t, err)
	require.Nil(t, ask(t, c, opTransfer, string(body)))
	got := s.asked[1].(site.Task)
	require.Equal(t, "noauto", got.Receive.Set["canmount"], "a new dataset is not mounted")
	delete(got.Receive.Set, "canmount")
	require.Equal(t, full, got)
}

func TestGateAudit(t *testing.T) {
	t.Parallel()
	c, _, audit := gated(t, true, "receive=vault")
	require.NotNil(t, ask(t, c, "x\ny", `"`+strings.Repeat("a", 5000)+`"`))
	require.NotNil(t, ask(t, c, opTransfer, `{"receive":{"target":"tank"},"ticket":{"mode":"tls","address":"a:1","session":"","secret":"U0VDUkVU","streams":1,"deadline":1},"options":{}}`))
	for _, line := range *audit {
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "U0VDUkVU")
		require.Less(t, len(line), 1500)
	}
}
