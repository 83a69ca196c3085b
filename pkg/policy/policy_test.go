package policy

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/site"
)

func TestBelow(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"tank/vm": true, "tank/vm/a": true, "tank/vm/a b": true, "tank/vm2": false, "tank": false, "tank/vm/": false,
		"tank/vm/../x": false, "tank/vm/./x": false, "tank/vm//x": false, "": false, "/tank/vm": false, "TANK/vm": false,
		"tank/vm@x": false, "tank/vm#x": false, "tank/vm\x00/x": false, "tank/vm\n": false, "-o": false,
	} {
		require.Equal(t, want, below(name, []string{"tank/vm"}), "%q", name)
	}
	require.False(t, below("tank/vm", nil))
}

func TestParse(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"receive=vault/a", "send=tank/vm", "send-decrypted=tank/open"}, []string{"10.1.2.3/8", "::1"}, true)
	require.NoError(t, err)
	require.Equal(t, "--allow receive=vault/a --allow send=tank/vm --allow send-decrypted=tank/open --append-only --peer 10.0.0.0/8 --peer ::1", p.String())
	require.True(t, p.peer("10.9.9.9"))
	require.True(t, p.peer("::ffff:10.9.9.9"))
	require.False(t, p.peer("11.0.0.1"))
	require.False(t, p.peer("localhost"))
	for _, bad := range []string{"", "receive", "receive=", "destroy=tank", "receive=tank/", "receive=tank@x", "receive=/", "Receive=tank", "receive =tank"} {
		_, err := Parse([]string{bad}, nil, false)
		require.Error(t, err, "%q", bad)
		require.Equal(t, fault.Usage, fault.ClassOf(err), "%q", bad)
	}
	_, err = Parse(nil, nil, true)
	require.Error(t, err)
}

// The zero policy admits nothing but facts.
func TestZeroPolicy(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{}, nil, func(string) {})
	for op := range rules() {
		if op == "facts" || op == "host-facts" || op == "dataset-of" { // the latter needs a Site; see package agent
			continue
		}
		for _, body := range []string{``, `null`, `1`, `{"dataset":"tank"}`, `{"dataset":"","only":["tank"]}`, `["tank@x"]`, `"tank/x"`} {
			if op == "offer" || body == `null` && op != "transfer" {
				continue // a list of nothing is about nothing
			}
			_, err := g.Admit(context.Background(), op, json.RawMessage(body))
			require.Equal(t, fault.Refused, fault.ClassOf(err), "%s %s", op, body)
		}
	}
}

// A list may name datasets one by one: each is judged.
func TestListOnly(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"tank/vm"}}, nil, func(string) {})
	_, err := g.Admit(t.Context(), "list", json.RawMessage(`{"dataset":"tank/vm","only":["tank/vm/a","tank/vm"],"changed":true}`))
	require.NoError(t, err)
	_, err = g.Admit(t.Context(), "list", json.RawMessage(`{"dataset":"tank/vm","only":["tank/vm/a","tank/home"]}`))
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	// Whatever a listing may be asked for, there is a rule for it.
	q, err := json.Marshal(site.ListQuery{Dataset: "tank/vm", Recursive: true, Versions: true, Newest: true, Alone: true, Only: []string{"tank/vm"}, Changed: true})
	require.NoError(t, err)
	_, err = g.Admit(t.Context(), "list", q)
	require.NoError(t, err)
}

// Of what is above a grant only what a plan must know may be read: "all" would
// be its administrator's own properties too.
func TestPropertiesAbove(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Send: []string{"tank/vm/a"}}, nil, func(string) {})
	for body, ok := range map[string]bool{
		`{"names":["tank","tank/vm"],"properties":["type","encryption","guid","available"]}`: true,
		`{"names":["tank/vm/a"],"properties":["all","org.example:note"]}`:                    true,
		`{"names":["tank/vm/a"],"properties":null}`:                                          true,
		`{"names":["tank/vm"],"properties":["all"]}`:                                         false,
		`{"names":["tank/vm"],"properties":["type","org.example:note"]}`:                     false,
		`{"names":["tank/vm/a","tank"],"properties":["sharenfs"]}`:                           false,
		`{"names":["tank"],"properties":null}`:                                               false,
		`{"names":["tank/vm@x"],"properties":["guid"]}`:                                      false,
		`{"names":["tank/home"],"properties":["type"]}`:                                      false,
	} {
		_, err := g.Admit(t.Context(), "properties", json.RawMessage(body))
		if ok {
			require.NoError(t, err, body)
		} else {
			require.Equal(t, fault.Refused, fault.ClassOf(err), body)
		}
	}
}

// FuzzAdmit looks for a request that names no granted dataset as its target
// and is admitted all the same.
func FuzzAdmit(f *testing.F) {
	f.Add([]byte(`{"receive":{"target":"vault/a"},"options":{}}`))
	f.Add([]byte(`{"receive":{"target":"vault/a","target":"tank"},"options":{}}`))
	f.Add([]byte(`{"receive":{"Target":"tank","rollback":true},"options":{}}`))
	f.Add([]byte(`{"receive":{"target":"vault/a","set":{"mountpoint":"/"}},"options":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		g := NewGuard(&Policy{Receive: []string{"vault"}}, nil, func(line string) { require.NotContains(t, line, "\n") })
		judged, err := g.Admit(context.Background(), opTransfer, body)
		if err != nil {
			return
		}
		var got task
		require.NoError(t, decode(judged, &got))
		require.Nil(t, got.Send)
		require.True(t, below(got.Receive.Target, []string{"vault"}))
		require.False(t, got.Receive.Rollback)
		require.NotContains(t, got.Receive.Set, "mountpoint")
		if got.Receive.Arrival.Base == 0 {
			require.Equal(t, "on", got.Receive.Set["readonly"])
			require.True(t, got.Receive.Arrival.Volume || got.Receive.Set["canmount"] == "noauto" || got.Receive.Set["canmount"] == "off")
		}
	})
}

// Every job asks every host for its facts: that they are refused is no news to
// who reads the audit, unless it is asked for in another way.
func TestHostFactsAreRefusedQuietly(t *testing.T) {
	t.Parallel()
	var audited []string
	g := NewGuard(&Policy{}, nil, func(l string) { audited = append(audited, l) })
	_, err := g.Admit(t.Context(), "capture", json.RawMessage(`true`))
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.ErrorContains(t, err, "facts of the whole host")
	require.Empty(t, audited)
	_, err = g.Admit(t.Context(), "capture", json.RawMessage(`"x"`))
	require.Equal(t, fault.Refused, fault.ClassOf(err))
	require.Len(t, audited, 1)
}
