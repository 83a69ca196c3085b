package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/agent/authz"
	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/transfer"
	"zxfer/pkg/transport"
	"zxfer/pkg/transport/tcp"
	"zxfer/pkg/zfs"
)

// restrictedSession returns a session of a restricted agent for a host in memory. Its guard
// queries a second, identical host.
func restrictedSession(t *testing.T, appendOnly bool, grants ...string) (*session, *host, *[]string) {
	t.Helper()
	p, err := authz.Parse(grants, []string{"192.0.2.1"}, appendOnly)
	require.NoError(t, err)
	s := newHost(nil)
	var audit []string
	c := newSession(context.Background(), s, authz.NewGuard(p, newHost(nil), func(line string) { audit = append(audit, line) }))
	return c, s, &audit
}

func callSession(t *testing.T, c *session, op, body string) *failure {
	t.Helper()
	var m message
	raw := c.answer(t.Context(), &message{ID: 1, Op: op, Body: json.RawMessage(body)})
	require.NoError(t, json.Unmarshal(raw[4:], &m))
	return m.Error
}

// TestGateCoversEveryOperation expects that every operation, including later ones, is refused for
// names outside the grants. facts and host-facts have no names.
func TestGateCoversEveryOperation(t *testing.T) {
	t.Parallel()
	outside := map[string]string{
		hosts.OpList.Name(): `{"dataset":"tank/b"}`, hosts.OpDatasetOf.Name(): `"/tank/a"`, hosts.OpProperties.Name(): `{"names":["tank/b"],"properties":["used"]}`,
		hosts.OpEstimate.Name(): `[{"dataset":"tank/b","to":"x","flags":{}}]`, hosts.OpSnapshot.Name(): `["tank/b@x"]`,
		hosts.OpHold.Name(): `{"tag":"t","snapshots":["tank/b@x"]}`, hosts.OpRelease.Name(): `{"tag":"zxfer:j:t","snapshots":["tank/b@x"]}`,
		hosts.OpHolds.Name(): `["tank/b@x"]`, hosts.OpBookmark.Name(): `{"tank/b#x":"tank/b@x"}`, hosts.OpDestroy.Name(): `["tank/b@x"]`,
		hosts.OpCreateParents.Name(): `"tank/b/x"`, hosts.OpDiscardPartial.Name(): `"tank/b"`, hosts.OpDigest.Name(): `{"dataset":"tank/b","to":"x","flags":{}}`,
		hosts.OpOffer.Name(): `{"mode":"tls","streams":1,"address":"::","deadline":1}`, hosts.OpTransfer.Name(): receiveInto("tank/b"),
		hosts.OpApply.Name():       `{"changes":[{"op":"hold","args":{"tag":"t","snapshots":["vault/a@x"]}},{"op":"destroy","args":["tank/b@x"]}]}`,
		hosts.OpMountpoints.Name(): `"tank/b"`, // without arguments, it is refused like other facts of the host, which is not logged
	}
	for _, o := range hosts.Operations() {
		op := o.Name()
		if op == hosts.OpFacts.Name() || op == hosts.OpHostFacts.Name() {
			continue
		}
		c, _, audit := restrictedSession(t, false, "receive=vault", "send=tank/vm")
		c.host = struct{ hosts.Host }{} // panics if it is called
		body, known := outside[op]
		if !known {
			body = `{}` // a later operation, which has no rule
		}
		f := callSession(t, c, op, body)
		require.NotNil(t, f, op)
		require.Equal(t, fault.Refused, f.Class, op)
		require.Contains(t, (*audit)[0], "refused", op)
	}
}

// TestGateForbiddenOperations expects that operations without permission for any restricted key are refused with
// a reason for the client.
func TestGateForbiddenOperations(t *testing.T) {
	t.Parallel()
	for op, why := range map[string]string{
		hosts.OpInheritKeyAsserted.Name(): "a restricted key cannot assert keys other than passphrases", hosts.OpSnapshotFrozen.Name(): "a restricted key cannot freeze applications", hosts.OpRunInDrillClone.Name(): "a restricted key cannot run commands",
		hosts.OpFindPools.Name(): "a restricted key cannot list pools", hosts.OpImportPool.Name(): "a restricted key cannot import pools", hosts.OpExportPool.Name(): "a restricted key cannot export pools",
	} {
		c, _, audit := restrictedSession(t, false, "receive=vault", "drill=vault", "restore=vault")
		c.host = struct{ hosts.Host }{} // panics if it is called
		f := callSession(t, c, op, `{}`)
		require.NotNil(t, f, op)
		require.Equal(t, fault.Refused, f.Class, op)
		require.Contains(t, f.Text, why)
		require.NotContains(t, f.Text, op)
		require.Contains(t, (*audit)[0], "refused \""+op+"\": "+why)
	}
}

func TestGateAdmits(t *testing.T) {
	t.Parallel()
	tests := []struct{ op, body string }{
		{hosts.OpFacts.Name(), `{}`},
		{hosts.OpHostFacts.Name(), `{}`},
		{hosts.OpList.Name(), `{"dataset":"vault/a","recursive":true}`},
		{hosts.OpProperties.Name(), `{"names":["vault/a@x","tank"],"properties":["guid"]}`},
		{hosts.OpEstimate.Name(), `[{"dataset":"tank/vm/x","from":"#b","to":"x","flags":{"raw":true}}]`},
		{hosts.OpSnapshot.Name(), `["tank/vm@y"]`},
		{hosts.OpHold.Name(), `{"tag":"t","snapshots":["vault/a@x"]}`},
		{hosts.OpRelease.Name(), `{"tag":"zxfer:j:t","snapshots":["vault/a@x"]}`},
		{hosts.OpBookmark.Name(), `{"tank/vm#x":"tank/vm@x"}`},
		{hosts.OpDigest.Name(), `{"dataset":"vault/a","from":"@w","to":"x","flags":{"raw":true}}`},
		{hosts.OpDiscardPartial.Name(), `"vault/a"`},
		{hosts.OpOffer.Name(), `{"mode":"tls","streams":4,"address":"10.0.0.1","peer":"192.0.2.1","deadline":30000000000}`},
		{hosts.OpTransfer.Name(), `{"from":{"files":{"archive":{"snapshot":"tank/vm@x","paths":["a"]}}},"to":{"accept":{"session":"ab"}}}`},
		{hosts.OpTransfer.Name(), `{"from":{"stream":{"spec":{"dataset":"tank/vm","to":"x","flags":{"raw":true}}}},"to":{"accept":{"session":"ab"}}}`},
	}
	for _, tt := range tests {
		c, _, _ := restrictedSession(t, true, "receive=vault", "send=tank/vm")
		require.Nil(t, callSession(t, c, tt.op, tt.body), tt.op)
	}
}

// receiveInto requests a receive into a dataset.
func receiveInto(target string) string {
	return `{"from":{"accept":{"session":"ab"}},"to":{"stream":{"spec":{"target":"` + target + `"}}}}`
}

// TestGateDecodesEveryField expects that rules decode all fields of their operations. Otherwise, they
// would refuse legitimate clients.
func TestGateDecodesEveryField(t *testing.T) {
	t.Parallel()
	c, s, _ := restrictedSession(t, true, "receive=vault", "send=tank/vm")
	into := hosts.ReceiveStream{
		Spec: zfs.ReceiveSpec{Target: "vault/a", Origin: "vault/o@x", Set: map[string]string{"readonly": "on"}, KeepKey: true,
			Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "a", GUID: 8}}, Base: 9, Volume: false, Raw: true, Resumed: true}},
		Options: transfer.Options{Buffer: 1, Block: 2, BandLimit: 3, Compress: "zstd", CompressThreads: 1, Stall: 5, LimitID: 1<<64 - 1},
	}
	full := hosts.Task{To: into,
		From: hosts.Dial{Ticket: tcp.Ticket{Mode: tcp.TLS, Address: "192.0.2.1:7", Session: "s", Secret: []byte{1}, Streams: 2, Socket: transport.Socket{Window: 3, Congestion: "reno"}, Deadline: 4}},
	}
	body, err := json.Marshal(full)
	require.NoError(t, err)
	require.Nil(t, callSession(t, c, hosts.OpTransfer.Name(), string(body)))
	got := s.asked[1].(hosts.Task)
	set := got.To.(hosts.ReceiveStream).Spec.Set
	require.Equal(t, "noauto", set["canmount"], "a new dataset is not mounted")
	delete(set, "canmount")
	require.Equal(t, full, got)
}

// TestEveryRequestFieldHasDecision expects a decision on every field of every request to a
// restricted agent. Either package authz checks it or lists it as harmless, or the test expects a
// refusal.
func TestEveryRequestFieldHasDecision(t *testing.T) {
	t.Parallel()
	guard := authz.NewGuard(&authz.Policy{}, newHost(nil), func(string) {})
	judged := func(o hosts.Operation, args reflect.Value) string {
		body, err := json.Marshal(args.Interface())
		require.NoError(t, err)
		_, err = guard.Admit(t.Context(), authz.Request{Op: o.Name(), Body: body})
		_, field, _ := strings.Cut(fmt.Sprint(err), "no rule covers the field ")
		return field
	}
	for _, o := range hosts.Operations() {
		args := arguments(o)
		if args.Type() == reflect.TypeFor[hosts.Task]() {
			continue
		}
		fill(args)
		require.Empty(t, judged(o, args), "%s: add a decision to package authz, or the reason for the refusal to this test", o.Name())
	}
	send, receive, dial := hosts.SendStream{}, hosts.ReceiveStream{}, hosts.Dial{}
	device, volume, noise, reads, writes := hosts.WriteDevice{}, hosts.WriteVolume{}, hosts.Noise{}, hosts.SendFiles{}, hosts.ReceiveFiles{}
	for _, end := range []any{&send, &receive, &dial, &device, &volume, &noise, &reads, &writes} {
		fill(reflect.ValueOf(end).Elem())
	}
	accept := hosts.Accept{Session: "s"}
	for _, task := range []hosts.Task{{From: send, To: dial}, {From: dial, To: receive}, {From: send, To: receive}, {From: send, To: accept}, {From: reads, To: accept}} {
		require.Empty(t, judged(hosts.OpTransfer, reflect.ValueOf(task)), "add a decision to package authz")
	}
	require.Equal(t, "hosts.WriteDevice.Task", judged(hosts.OpTransfer, reflect.ValueOf(hosts.Task{From: accept, To: device})), "restricted keys may not access devices")
	require.Equal(t, "hosts.WriteVolume.Volume", judged(hosts.OpTransfer, reflect.ValueOf(hosts.Task{From: accept, To: volume})), "restricted keys may not access devices")
	require.Equal(t, "hosts.ReceiveFiles.Into", judged(hosts.OpTransfer, reflect.ValueOf(hosts.Task{From: accept, To: writes})), "restricted keys may not restore files")
	require.Equal(t, "hosts.Noise.Time", judged(hosts.OpTransfer, reflect.ValueOf(hosts.Task{From: noise, To: accept})), "restricted keys may not measure")
}

// arguments returns zero arguments of an operation, to fill.
func arguments(o hosts.Operation) reflect.Value {
	check, _ := reflect.TypeOf(o).FieldByName("check")
	return reflect.New(check.Type.In(0)).Elem()
}

// fill sets every field that is encoded.
func fill(v reflect.Value) {
	if v.Type() == reflect.TypeFor[hosts.Change]() {
		v.Set(reflect.ValueOf(hosts.OpDestroy.Change([]string{"x"})))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("json") != "-" {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	}
}

func TestGateAudit(t *testing.T) {
	t.Parallel()
	c, _, audit := restrictedSession(t, true, "receive=vault")
	require.NotNil(t, callSession(t, c, "x\ny", `"`+strings.Repeat("a", 5000)+`"`))
	require.NotNil(t, callSession(t, c, hosts.OpTransfer.Name(), `{"from":{"dial":{"ticket":{"mode":"tls","address":"a:1","session":"","secret":"U0VDUkVU","streams":1,"deadline":1}}},"to":{"stream":{"spec":{"target":"tank"}}}}`))
	for _, line := range *audit {
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "U0VDUkVU")
		require.Less(t, len(line), 1500)
	}
}
