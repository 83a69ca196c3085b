package authz

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/hosts"
	"zxfer/pkg/zfs"
	"zxfer/pkg/zfs/zfsmem"
)

// TestNamesInRequests expects each name in a request to be well formed and below a granted dataset.
func TestNamesInRequests(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"send=tank/vm", "receive=vault", "receive=later/copies"}, nil, false)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		op, body string
		refused  string // "" = allowed
	}{
		"bookmark":                                      {"bookmark", `{"tank/vm#b":"tank/vm@s"}`, ""},
		"bookmark of a child":                           {"bookmark", `{"tank/vm/a#b":"tank/vm/a@s"}`, ""},
		"bookmark without a grant":                      {"bookmark", `{"tank/home#b":"tank/home@s"}`, "permit"},
		"bookmark of a snapshot elsewhere":              {"bookmark", `{"tank/vm#b":"tank/home@s"}`, "permit"},
		"bookmark that is a snapshot":                   {"bookmark", `{"tank/vm@b":"tank/vm@s"}`, "bookmark"},
		"bookmark of a bookmark":                        {"bookmark", `{"tank/vm#b":"tank/vm#s"}`, "snapshot"},
		"destroy":                                       {"destroy", `["tank/vm@s","vault/a#b"]`, ""},
		"destroy without a grant":                       {"destroy", `["tank/home@s"]`, "permit"},
		"destroy a dataset":                             {"destroy", `["tank/vm"]`, "tank/vm"},
		"hold":                                          {"hold", `{"tag":"t","snapshots":["tank/vm@s"]}`, ""},
		"hold without a grant":                          {"hold", `{"tag":"t","snapshots":["tank/vm@s","tank/home@s"]}`, "permit"},
		"hold a dataset":                                {"hold", `{"tag":"t","snapshots":["tank/vm"]}`, "hold: "},
		"release a malformed name":                      {"release", `{"tag":"zxfer:t","snapshots":["tank/vm@s@s"]}`, "release: "},
		"properties of a version":                       {"properties", `{"names":["tank/vm@s","vault#b"],"properties":["used"]}`, ""},
		"properties of a malformed version":             {"properties", `{"names":["tank/vm@s@t"],"properties":["guid"]}`, "tank/vm@s@t"},
		"properties of an ancestor":                     {"properties", `{"names":["tank","tank/vm"],"properties":["type"]}`, ""},
		"properties of a granted and a foreign dataset": {"properties", `{"names":["tank","tank/home"],"properties":["type"]}`, "tank/home"},
		"query for leftover clones":                     {"properties", `{"names":["tank/vm"],"properties":["origin","zxfer:drill"]}`, ""},
		"malformed property":                            {"properties", `{"names":["tank/vm"],"properties":["used,all"]}`, "used,all"},
		"send":                                          {"estimate", `[{"dataset":"tank/vm","from":"#b","through":["s","t"],"to":"u"}]`, ""},
		"send from a snapshot":                          {"estimate", `[{"dataset":"tank/vm","from":"@b","to":"u"}]`, ""},
		"send of a clone":                               {"estimate", `[{"dataset":"tank/vm","from":"tank/vm/a@s","to":"u"}]`, ""},
		"send of a clone without a grant":               {"estimate", `[{"dataset":"tank/vm","from":"tank/home@s","to":"u"}]`, "permit"},
		"send to a malformed snapshot":                  {"estimate", `[{"dataset":"tank/vm","to":"u@v"}]`, "u@v"},
		"send through a malformed snapshot":             {"estimate", `[{"dataset":"tank/vm","through":["s/t"],"to":"u"}]`, "s/t"},
		"send from a malformed snapshot":                {"estimate", `[{"dataset":"tank/vm","from":"@s#t","to":"u"}]`, "s#t"},
		"send from a malformed bookmark":                {"estimate", `[{"dataset":"tank/vm","from":"#s#t","to":"u"}]`, "s#t"},
		"raw send from a malformed bookmark":            {"estimate", `[{"dataset":"tank/vm","from":"#s#t","to":"u","flags":{"raw":true}}]`, "s#t"},
		"parents":                                       {"create-parents", `"vault/a/b"`, ""},
		"parents without a grant":                       {"create-parents", `"tank/vm/a"`, "receiving into"},
		"parents below a missing root":                  {"create-parents", `"later/copies/a"`, "the agent's policy forbids it: later/copies does not exist"},
		"parents of a missing root":                     {"create-parents", `"later/copies"`, ""},
		"receive":                                       {"transfer", receiveTask(`"target":"vault/a"`), ""},
		"receive with rollback":                         {"transfer", receiveTask(`"target":"vault/a","rollback":true`), "with rollback"},
		"receive a clone":                               {"transfer", receiveTask(`"target":"vault/a","origin":"vault/o@s"`), ""},
		"receive a clone of a foreign dataset":          {"transfer", receiveTask(`"target":"vault/a","origin":"tank/vm@s"`), "permit"},
		"receive a clone of a dataset":                  {"transfer", receiveTask(`"target":"vault/a","origin":"vault/o"`), "origin"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := zfsmem.New("tank/vm/a", "tank/home", "vault", "later")
			_, err := admit(t, NewGuard(p, hosts.On(h, "test", func(string) {}), func(string) {}), tt.op, tt.body)
			if tt.refused == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.refused)
			}
		})
	}
}

// receiveTask returns a task that receives according to spec.
func receiveTask(spec string) string {
	return `{"from":{"accept":{"session":"x"}},"to":{"stream":{"spec":{` + spec + `}}}}`
}

// TestEveryReceivePropertyIsChecked puts a forbidden property after permitted ones, and expects a
// refusal.
func TestEveryReceivePropertyIsChecked(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"receive=vault"}, nil, true)
	require.NoError(t, err)
	spec := zfs.ReceiveSpec{Target: "vault/new", Set: map[string]string{"canmount": "noauto", "compression": "zstd", "readonly": "on", "setuid": "on"}}
	require.ErrorContains(t, NewGuard(p, vault(), func(string) {}).checkReceive(t.Context(), &spec), "setuid")
}

// TestReceivePropertiesAreLimited expects that the client may choose only a few properties of a received
// dataset, with harmless values.
func TestReceivePropertiesAreLimited(t *testing.T) {
	t.Parallel()
	restored, err := Parse([]string{"restore=vault"}, nil, true)
	require.NoError(t, err)
	received, err := Parse([]string{"receive=vault"}, nil, true)
	require.NoError(t, err)
	for set, may := range map[string]struct{ receive, restore bool }{
		"readonly=on": {true, true}, "readonly=off": {false, false}, "canmount=noauto": {true, true}, "canmount=on": {false, false},
		"compression=zstd-3": {true, true}, "compression=": {false, false}, "compression=lz4;x": {false, false},
		"compression=" + strings.Repeat("z", 32): {false, false}, "zxfer:stream=" + strings.Repeat("z", 32): {true, true}, "zxfer:stream=" + strings.Repeat("z", 33): {false, false},
		"checksum=sha256": {true, true}, "checksum=off": {false, false}, "checksum=noparity": {false, false}, "checksum=a b": {false, false},
		"encryption=off": {true, true}, "encryption=on": {false, false}, "keyformat=raw": {false, false}, "volsize=1G": {false, false}, "used=1": {false, false},
		"org.example:note=x": {false, false}, "org.example:note=" + strings.Repeat("x", 9000): {false, false}, "nonsense=x": {false, false}, "a b=x": {false, false},
		"zxfer:restore=on": {false, true}, "zxfer:restore=off": {false, false}, "zxfer:job=x": {false, false}, "volmode=dev": {false, false}, "atime=off": {false, true},
		"org.example:note=a\nvault/x\t/root/.ssh\ton": {false, false}, "com.sun:auto-snapshot=true": {false, false}, "org.openzfs.systemd:required-by=x": {false, false},
		"org.zfsbootmenu:commandline=x": {false, false}, "setuid=on": {false, false}, "setuid=off": {true, true}, "acltype=posix": {true, true}, "acltype=off": {true, true}, "acltype=x": {false, false}, "quota=1": {false, false}, "devices=on": {false, false}, "exec=on": {false, false},
		"context=x": {false, false}, "dedup=on": {false, false}, "atime=off\n": {false, false},
	} {
		name, value, _ := strings.Cut(set, "=")
		for p, want := range map[*Policy]bool{received: may.receive, restored: may.restore} {
			spec := zfs.ReceiveSpec{Target: "vault/new", Set: map[string]string{name: value}}
			spec.Carry = zfs.Carry{All: true, Named: []string{name}} // the request's own claim does not count
			err := NewGuard(p, vault(), func(string) {}).checkReceive(t.Context(), &spec)
			require.Equal(t, want, err == nil, "%s %.40s: %v", p, set, err)
			if want {
				_, err = zfs.ReceiveArgs(spec)
				require.NoError(t, err, "%s %.40s", p, set)
				require.Empty(t, spec.Carry.Named)
			}
		}
	}
}

// TestNewDatasetIsNotMounted expects that a new dataset is not mounted, and that a later receive
// changes no property.
func TestNewDatasetIsNotMounted(t *testing.T) {
	t.Parallel()
	g := NewGuard(&Policy{Receive: []string{"vault"}}, vault(), func(string) {})
	forced := map[string]string{"readonly": "on", "canmount": "noauto"}
	for name, tt := range map[string]struct {
		spec zfs.ReceiveSpec
		want map[string]string
	}{
		"new filesystem":       {zfs.ReceiveSpec{}, forced},
		"new volume":           {zfs.ReceiveSpec{Arrival: zfs.Arrival{Volume: true}}, map[string]string{"readonly": "on"}},
		"new clone":            {zfs.ReceiveSpec{Origin: "vault/o@x", Arrival: zfs.Arrival{Base: 7}}, forced},
		"incremental":          {zfs.ReceiveSpec{Arrival: zfs.Arrival{Base: 7}}, nil},
		"requested properties": {zfs.ReceiveSpec{Set: map[string]string{"canmount": "off"}}, map[string]string{"readonly": "on", "canmount": "off"}},
	} {
		tt.spec.Target = "vault/new"
		require.NoError(t, g.checkReceive(t.Context(), &tt.spec), name)
		require.Equal(t, tt.want, tt.spec.Set, name)
	}
}

// TestReceiveKeepsTheKey expects that an append-only key keeps the wrapped key of a dataset, unless
// a grant lets it change.
func TestReceiveKeepsTheKey(t *testing.T) {
	t.Parallel()
	for grant, keeps := range map[string]bool{"receive=vault": true, "receive-rekey=vault": false} {
		p, err := Parse([]string{grant}, nil, true)
		require.NoError(t, err)
		spec := zfs.ReceiveSpec{Target: "vault/a", Arrival: zfs.Arrival{Base: 7}}
		require.NoError(t, NewGuard(p, vault(), func(string) {}).checkReceive(t.Context(), &spec))
		require.Equal(t, keeps, spec.KeepKey, grant)
	}
}

// mounted is a host whose paths are all on one dataset.
type mounted struct {
	*hosts.Local
	dataset string
}

func (m mounted) DatasetOf(context.Context, string) (string, error) { return m.dataset, nil }

// TestDatasetOfPath expects that a path leads only to a dataset that the key may send.
func TestDatasetOfPath(t *testing.T) {
	t.Parallel()
	p, err := Parse([]string{"send=tank/vm", "receive=vault"}, nil, false)
	require.NoError(t, err)
	path := "/srv"
	for dataset, ok := range map[string]bool{"tank/vm/a": true, "tank": false, "vault": false} {
		err := mayDatasetOf(t.Context(), NewGuard(p, mounted{vault(), dataset}, func(string) {}), &path)
		require.Equal(t, ok, err == nil, "%s: %v", dataset, err)
		if !ok {
			require.NotContains(t, err.Error(), dataset, "the dataset is not disclosed")
		}
	}
	require.ErrorContains(t, mayDatasetOf(t.Context(), NewGuard(p, vault(), func(string) {}), &path), "not on a dataset that this key may send")
}
