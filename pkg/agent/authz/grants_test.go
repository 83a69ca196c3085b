package authz

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

func TestBelow(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"tank/vm": true, "tank/vm/a": true, "tank/vm/a b": true, "tank/vm2": false, "tank": false, "tank/vm/": false,
		"tank/vm/../x": false, "tank/vm/./x": false, "tank/vm//x": false, "": false, "/tank/vm": false, "TANK/vm": false,
		"tank/vm@x": false, "tank/vm#x": false, "tank/vm\x00/x": false, "tank/vm\n": false, "-o": false,
	} {
		require.Equal(t, want, within(name, []string{"tank/vm"}), "%q", name)
	}
	require.False(t, within("tank/vm", nil))
}

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"receive=vault/a", "send=tank/vm", "send-decrypted=tank/open"}, []string{"10.1.2.3/8", "::1"}, true)
	require.NoError(t, err)
	require.Equal(t, "--allow receive=vault/a --allow send=tank/vm --allow send-decrypted=tank/open --append-only --peer 10.0.0.0/8 --peer ::1", p.String())
	require.True(t, p.isPeer("10.9.9.9"))
	require.True(t, p.isPeer("::ffff:10.9.9.9"))
	require.False(t, p.isPeer("11.0.0.1"))
	require.False(t, p.isPeer("localhost"))
	for _, bad := range []string{"", "receive", "receive=", "destroy=tank", "receive=tank/", "receive=tank@x", "receive=/", "Receive=tank", "receive =tank"} {
		_, err := Parse([]string{bad}, nil, false)
		require.Error(t, err, "%q", bad)
		require.Equal(t, fault.Usage, fault.ClassOf(err), "%q", bad)
	}
	_, err = Parse(nil, nil, true)
	require.Error(t, err)
}

func admit(t *testing.T, g *Guard, op, body string) (any, error) {
	t.Helper()
	return g.Admit(t.Context(), Request{Op: op, Body: json.RawMessage(body)})
}

// TestZeroPolicy expects that the zero policy permits nothing.
func TestZeroPolicy(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{}, vault(), func(string) {})
	for op := range rules() {
		for _, body := range []string{``, `null`, `1`, `{"dataset":"tank"}`, `{"dataset":"","only":["tank"]}`, `["tank@x"]`, `"tank/x"`} {
			if slices.Contains([]string{"offer", "facts", "host-facts"}, op) || body == `null` && op != "transfer" {
				continue // an empty list has no names
			}
			_, err := admit(t, g, op, body)
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%s %s", op, body)
		}
	}
}

// TestEveryOperationHasARule expects that each operation has an explicit rule, which may be the
// zero rule.
func TestEveryOperationHasARule(t *testing.T) {
	t.Parallel()
	have := rules()
	for _, op := range hosts.Operations() {
		require.NotNil(t, have[op.Name()], op.Name())
		delete(have, op.Name())
	}
	require.Empty(t, have)
}

// TestUncheckedFieldIsRefused expects that a field that is not in checkedFields
// is refused.
func TestUncheckedFieldIsRefused(t *testing.T) {
	t.Parallel()
	type later struct{ Known, Added string }
	g := NewGuard(&Policy{}, nil, func(string) {})
	for _, nested := range []any{later{Added: "x"}, []later{{}, {Added: "x"}}, &struct{ Deep *later }{&later{}}, map[string]later{"a": {}}, [1]int{}, func() {}} {
		require.NotEmpty(t, uncheckedField(reflect.ValueOf(nested)))
	}
	require.Empty(t, uncheckedField(reflect.ValueOf(later{})))
	_, err := reads(allowAll[later]).admit(t.Context(), g, Request{Op: "later", Body: json.RawMessage(`{"Added":"x"}`)})
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "later.Added")
	_, err = reads(allowAll[hosts.Task]).admit(t.Context(), g, Request{Op: "transfer", Body: json.RawMessage(`{"from":{"noise":{"time":1}},"to":{"accept":{"session":"x"}}}`)})
	require.ErrorContains(t, err, "hosts.Noise.Time")
}

// TestCheckedFieldsExist expects that checkedFields lists only existing fields.
func TestCheckedFieldsExist(t *testing.T) {
	t.Parallel()
	for of, names := range checkedFields {
		for _, name := range names {
			_, found := of.FieldByName(name)
			require.True(t, found, "%s.%s", of, name)
		}
	}
}

// TestListOnly expects that the guard checks each dataset of a list.
func TestListOnly(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"tank/vm"}}, nil, func(string) {})
	_, err := admit(t, g, "list", `{"dataset":"tank/vm","only":["tank/vm/a","tank/vm"],"changed":true}`)
	require.NoError(t, err)
	_, err = admit(t, g, "list", `{"dataset":"tank/vm","only":["tank/vm/a","tank/home"]}`)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	// Every field of a list query is covered.
	q, err := json.Marshal(hosts.ListQuery{Dataset: "tank/vm", Recursive: true, Versions: true, Newest: true, NoAncestors: true, Only: []string{"tank/vm"}, Changed: true, User: []string{"zxfer:job"}})
	require.NoError(t, err)
	_, err = admit(t, g, "list", string(q))
	require.NoError(t, err)
	for _, name := range []string{"all", "mountpoint", "my:x,all", "-r", "my:x y"} {
		_, err = admit(t, g, "list", fmt.Sprintf(`{"dataset":"tank/vm","user":[%q]}`, name))
		require.Error(t, err, name)
	}
}

// TestPropertiesAbove expects that for ancestors of a grant, only properties that a plan needs may
// be read. "all" would include the administrator's user properties.
func TestPropertiesAbove(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"tank/vm/a"}}, nil, func(string) {})
	for body, ok := range map[string]bool{
		`{"names":["tank","tank/vm"],"properties":["type","encryption","guid","available"]}`: true,
		`{"names":["tank","tank/vm"],"properties":["type","mountpoint"]}`:                    false,
		`{"names":["tank"],"properties":["keylocation"]}`:                                    false,
		`{"names":["tank/vm/a"],"properties":["mountpoint"]}`:                                true,
		`{"names":["tank/vm/a"],"properties":["all","org.example:note"]}`:                    true,
		`{"names":["tank/vm/a"],"properties":null}`:                                          true,
		`{"names":["tank/vm"],"properties":["all"]}`:                                         false,
		`{"names":["tank/vm"],"properties":["type","org.example:note"]}`:                     false,
		`{"names":["tank/vm/a","tank"],"properties":["sharenfs"]}`:                           false,
		`{"names":["tank"],"properties":null}`:                                               false,
		`{"names":["tank/vm@x"],"properties":["guid"]}`:                                      false,
		`{"names":["tank/home"],"properties":["type"]}`:                                      false,
	} {
		_, err := admit(t, g, "properties", body)
		if ok {
			require.NoError(t, err, body)
		} else {
			require.Equal(t, fault.Refused, fault.ClassOf(err), body)
		}
	}
}

// TestListAbove expects that a listing shows no more of ancestors than a read of their properties.
func TestListAbove(t *testing.T) {
	t.Parallel()
	h := zfsmem.New("tank/vm/a")
	for _, d := range []string{"tank", "tank/vm", "tank/vm/a"} {
		for p, v := range map[string]string{"mountpoint": "/secret", "keylocation": "file:///secret", "available": "7"} {
			h.Set(d, p, v)
		}
	}
	g := NewGuard(&Policy{Send: []string{"tank/vm/a"}}, hosts.On(h, "test", func(string) {}), func(string) {})
	for _, body := range []string{`{"dataset":"tank/vm/a","recursive":true}`, `{"dataset":"tank/vm/a","brief":false,"changed":true}`, `{"dataset":"tank/vm/a","newest":true}`} {
		args, err := reads(mayList).admit(t.Context(), g, Request{Op: "list", Body: []byte(body)})
		require.NoError(t, err)
		q := args.(hosts.ListQuery)
		l, err := h.List(t.Context(), q)
		require.NoError(t, err)
		require.Len(t, l.Ancestors, 2)
		for _, d := range l.Ancestors {
			require.Empty(t, d.Get("mountpoint"), body)
			require.Empty(t, d.Get("keylocation"), body)
			require.Equal(t, "7", d.Get("available"))
		}
		if !q.Changed {
			require.Equal(t, "/secret", l.Datasets[0].Get("mountpoint"))
		}
	}
}

// FuzzAdmit searches for a request that is admitted although its target is not
// granted.
func FuzzAdmit(f *testing.F) {
	for _, spec := range []string{`"target":"vault/a"`, `"target":"vault/a","target":"tank"`, `"Target":"tank","rollback":true`, `"target":"vault/a","set":{"mountpoint":"/"}`} {
		f.Add([]byte(`{"from":{"accept":{"session":"x"}},"to":{"stream":{"spec":{` + spec + `}}}}`))
	}
	f.Add([]byte(`{"from":{"accept":{"session":"x"}},"to":{"stream":{"spec":{"target":"vault/a"}},"device":{}}}`))
	f.Add([]byte(`{"from":{"accept":{"session":"x"}},"to":{"nothing":{}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := NewGuard(&Policy{Receive: []string{"vault"}}, emptyVault(), func(line string) { require.NotContains(t, line, "\n") })
		got, err := changes(mayTransfer, transferNames).admit(t.Context(), g, Request{Op: "transfer", Body: body, Secret: true})
		if err != nil {
			return
		}
		task := got.(hosts.Task)
		require.NotContains(t, []string{"device", "noise"}, task.Moves())
		if task.Moves() == "nothing" {
			return
		}
		require.IsType(t, hosts.ReceiveStream{}, task.To, "nothing may be sent")
		r := task.To.(hosts.ReceiveStream).Spec
		require.True(t, within(r.Target, []string{"vault"}))
		require.False(t, r.Rollback)
		require.NotContains(t, r.Set, "mountpoint")
		if r.Arrival.Base == 0 {
			require.Equal(t, "on", r.Set["readonly"])
			require.True(t, r.Arrival.Volume || r.Set["canmount"] == "noauto" || r.Set["canmount"] == "off")
		}
	})
}

// TestConnectionTestIsAdmitted expects that a connection may be tested if a stream could use it, and that the
// audit log records the test.
func TestConnectionTestIsAdmitted(t *testing.T) {
	t.Parallel()
	dial := func(address string) string {
		return `{"from":{"nothing":{}},"to":{"dial":{"ticket":{"mode":"tls","address":"` + address + `","session":"","secret":"","streams":1,"deadline":1}}}}`
	}
	for body, ok := range map[string]bool{
		`{"from":{"accept":{"session":"x"}},"to":{"nothing":{}}}`: true,
		`{"from":{"nothing":{}},"to":{"accept":{"session":"x"}}}`: true,
		dial("10.0.0.1:7"): true,
		dial("10.0.0.9:7"): false,
		`{"from":{"nothing":{}},"to":{"stream":{"spec":{"target":"vault"}}}}`:  false,
		`{"from":{"nothing":{"time":1}},"to":{"accept":{"session":"x"}}}`:      false,
		`{"from":{"noise":{"time":0}},"to":{"accept":{"session":"x"}}}`:        false,
		`{"from":{"accept":{"session":"x"}},"to":{"nothing":{},"nowhere":{}}}`: false,
	} {
		var audited []string
		g := NewGuard(&Policy{Receive: []string{"vault"}, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}, emptyVault(), func(l string) { audited = append(audited, l) })
		_, err := changes(mayTransfer, transferNames).admit(t.Context(), g, Request{Op: "transfer", Body: json.RawMessage(body), Secret: true})
		require.Equal(t, ok, err == nil, "%s: %v", body, err)
		require.Len(t, audited, 1)
		if ok {
			require.Equal(t, "admitted transfer: a connection without data", audited[0])
		}
	}
}

// TestAttachedStreamsAreChecked expects that a stream in the control connection needs the same grants as one over a data
// connection, and that the audit log names its dataset.
func TestAttachedStreamsAreChecked(t *testing.T) {
	t.Parallel()
	host, _ := encrypted(map[string]string{"tank": "-", "tank/plain": "-", "tank/enc": "tank/enc", "other": "-", "vault": "-"})
	send := func(dataset string, raw bool) hosts.SendStream {
		return hosts.SendStream{Spec: zfs.SendSpec{Dataset: dataset, To: "x", Flags: zfs.StreamFlags{Raw: raw}}}
	}
	receive := func(target string, rollback bool) hosts.ReceiveStream {
		return hosts.ReceiveStream{Report: true, Spec: zfs.ReceiveSpec{Target: target, Rollback: rollback, Arrival: zfs.Arrival{Snapshots: []zfs.SnapshotID{{Name: "x", GUID: 1}}}}}
	}
	data := hosts.Attached{Number: 2}
	for _, tt := range []struct {
		from    hosts.From
		to      hosts.To
		refused string
	}{
		{send("tank/plain", false), data, ""},
		{send("tank/enc", true), data, ""},
		{send("tank/enc", false), data, "only raw streams of it are permitted"},
		{send("other", false), data, "other"},
		{data, receive("vault/a", false), ""},
		{data, receive("vault/a", true), "rollback"},
		{data, receive("other/a", false), "other/a"},
	} {
		var audited string
		p, err := Parse([]string{"send=tank", "receive=vault"}, nil, false)
		require.NoError(t, err)
		g := NewGuard(p, host, func(l string) { audited += l })
		body, err := json.Marshal(hosts.Task{From: tt.from, To: tt.to})
		require.NoError(t, err)
		got, err := g.Admit(t.Context(), Request{Op: "transfer", Body: body, Secret: true})
		if tt.refused != "" {
			require.ErrorIs(t, err, hosts.ErrForbidden)
			require.ErrorContains(t, err, tt.refused)
			continue
		}
		require.NoError(t, err)
		require.Regexp(t, `admitted transfer: (send "tank|receive "vault/a")`, audited)
		if to, ok := got.(hosts.Task).To.(hosts.ReceiveStream); ok {
			require.Equal(t, map[string]string{"readonly": "on", "canmount": "noauto"}, to.Spec.Set)
		}
	}
	for _, body := range []string{
		`{"from":{"attached":{"number":2}},"to":{"attached":{"number":3}}}`,
		`{"from":{"attached":{"number":2}},"to":{"accept":{"session":"x"}}}`,
		`{"from":{"accept":{"session":"x"}},"to":{"attached":{"number":2}}}`,
		`{"from":{"files":{"archive":{"snapshot":"tank@x"}}},"to":{"attached":{"number":2}}}`,
		`{"from":{"device":{}},"to":{"attached":{"number":2}}}`,
		`{"from":{"attached":{"number":2}},"to":{"volume":{}}}`,
	} {
		g := NewGuard(&Policy{Send: []string{"tank"}, Receive: []string{"vault"}}, host, func(string) {})
		_, err := admit(t, g, "transfer", body)
		require.ErrorContains(t, err, "only a stream passes the control connection", body)
	}
}

// TestHostFactsRefusalIsNotLogged expects that refusals of host facts are not logged, unless the
// request is unusual. Every job queries every host for facts.
func TestHostFactsRefusalIsNotLogged(t *testing.T) {
	t.Parallel()
	var audited []string
	g := NewGuard(&Policy{}, nil, func(l string) { audited = append(audited, l) })
	_, err := admit(t, g, "capture", `true`)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "facts of the whole host")
	require.Empty(t, audited)
	_, err = admit(t, g, "capture", `"x"`)
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Len(t, audited, 1)
}
