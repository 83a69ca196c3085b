package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
)

// TestRestrictedKeyIsRefused sends requests that an append-only key with one receive and
// one send grant must not carry out. cmd/zxfer sends one of each kind over ssh.
func TestRestrictedKeyIsRefused(t *testing.T) {
	t.Parallel()
	const b, vm, secret = "vault/backup", "tank/vm", "vault/secret"
	const accepted = `{"accept":{"session":"x"}}`
	dial := func(address string) string {
		return `{"dial":{"ticket":{"mode":"tls","address":"` + address + `","session":"","secret":"","streams":1,"deadline":1}}}`
	}
	stream := func(spec string) string { return `{"stream":{"spec":` + spec + `}}` }
	task := func(from, to string) string { return `{"from":` + from + `,"to":` + to + `}` }
	receive := func(spec string) string { return task(dial("192.0.2.1:9"), stream(`{"target":`+spec+`}`)) }
	for _, tt := range []struct{ name, op, body, says string }{
		{"destroy a granted snapshot", opDestroy.name, `["` + b + `@a"]`, "append-only"},
		{"destroy another dataset's snapshot", opDestroy.name, `["` + secret + `@a"]`, "append-only"},
		{"destroy a dataset", opDestroy.name, `["` + b + `"]`, "no snapshot or bookmark"},
		{"release a hold of the administrator", opRelease.name, `{"tag":"legal","snapshots":["` + b + `@a"]}`, "append-only"},
		{"release a hold elsewhere", opRelease.name, `{"tag":"zxfer:x:y","snapshots":["` + secret + `@a"]}`, "not below"},
		{"hold elsewhere", opHold.name, `{"tag":"t","snapshots":["` + secret + `@a"]}`, "not below"},
		{"snapshot the target", opSnapshot.name, `["` + b + `@evil"]`, "not below"},
		{"snapshot the pool", opSnapshot.name, `["vault@evil"]`, "not below"},
		{"bookmark elsewhere", opBookmark.name, `{"` + secret + `#b":"` + secret + `@a"}`, "not below"},
		{"bookmark across datasets", opBookmark.name, `{"` + vm + `#b":"` + secret + `@a"}`, "not below"},
		{"list the pool", opList.name, `{"dataset":"vault","recursive":true}`, "not below"},
		{"list a name with a granted prefix", opList.name, `{"dataset":"` + b + `2"}`, "not below"},
		{"list a path with ..", opList.name, `{"dataset":"` + b + `/../secret"}`, "not below"},
		{"properties of another dataset", opProperties.name, `{"names":["` + secret + `"],"properties":["used"]}`, "not below"},
		{"all properties of the pool", opProperties.name, `{"names":["vault"],"properties":null}`, "not below"},
		{"holds elsewhere", opHolds.name, `["` + secret + `@a"]`, "not below"},
		{"dataset of a path", opDatasetOf.name, `"/"`, "may be sent"},
		{"send another dataset", opEstimate.name, `[{"dataset":"` + secret + `","to":"a","flags":{}}]`, "not below"},
		{"send a receive grant", opEstimate.name, `[{"dataset":"` + b + `","to":"a","flags":{}}]`, "not below"},
		{"send a name with a granted prefix", opEstimate.name, `[{"dataset":"` + vm + `2","to":"a","flags":{}}]`, "not below"},
		{"send from a base elsewhere", opEstimate.name, `[{"dataset":"` + vm + `","from":"` + secret + `@a","to":"a","flags":{}}]`, "not below"},
		{"send with an option in a name", opEstimate.name, `[{"dataset":"` + vm + `","to":"a -R","from":"@-R/../x","flags":{}}]`, "forbids"},
		{"forged resume token", opEstimate.name, `[{"dataset":"` + vm + `","to":"a","flags":{},"token":"1-0-0-00"}]`, "token"},
		{"digest of another dataset", opDigest.name, `{"dataset":"` + secret + `","to":"a","flags":{}}`, "not below"},
		{"receive elsewhere", opTransfer.name, receive(`"` + secret + `"`), "nothing may be received"},
		{"receive into the pool", opTransfer.name, receive(`"vault"`), "nothing may be received"},
		{"receive with rollback", opTransfer.name, receive(`"` + b + `/x","rollback":true`), "rolls back"},
		{"receive with a mountpoint", opTransfer.name, receive(`"` + b + `/x","set":{"mountpoint":"/etc"}`), "mountpoint"},
		{"receive and share", opTransfer.name, receive(`"` + b + `/x","set":{"sharenfs":"on"}`), "sharenfs"},
		{"receive a copy that mounts", opTransfer.name, receive(`"` + b + `/x","set":{"canmount":"on"}`), "canmount"},
		{"receive a writable copy", opTransfer.name, receive(`"` + b + `/x","set":{"readonly":"off"}`), "readonly"},
		{"receive a clone of another dataset", opTransfer.name, receive(`"` + b + `/x","origin":"` + secret + `@a"`), "not below"},
		{"receive from a local send", opTransfer.name, task(stream(`{"dataset":"`+secret+`","to":"a","flags":{}}`), stream(`{"target":"`+b+`/x"}`)), "not below"},
		{"create parents elsewhere", opCreateParents.name, `"vault/new/x"`, "nothing may be received"},
		{"discard elsewhere", opDiscard.name, `"` + secret + `"`, "nothing may be received"},
		{"connect to another host", opTransfer.name, task(dial("192.0.2.9:22"), stream(`{"target":"`+b+`/x"}`)), "may not connect"},
		{"listen on all addresses", opOffer.name, `{"mode":"plain","streams":1,"address":"0.0.0.0","deadline":1}`, "one address"},
		{"listen for years", opOffer.name, `{"mode":"plain","streams":1,"address":"192.0.2.2","deadline":900000000000000000}`, "deadline"},
		{"wait for years", opTransfer.name, task(accepted, `{"stream":{"spec":{"target":"`+b+`/x"},"options":{"stall":900000000000000000}}}`), "out of bounds"},
		{"unknown operation", "shell", `"id"`, "no rule"},
		{"unknown field", opList.name, `{"dataset":"` + b + `","x":1}`, "malformed"},
		{"join the key of another dataset", opInheritKey.name, `"` + secret + `"`, "not below"},
		{"sync another pool", opSync.name, `"` + secret + `"`, "not below"},
		{"roll an original back", opRollback.name, `{"dataset":"` + vm + `","to":{"name":"a","guid":"1"}}`, "a restricted key does not roll it back"},
		{"part from the key of another dataset", opMakeEncryptionRoot.name, `"` + secret + `"`, "nothing may be received"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _, audit := gated(t, true, "receive="+b, "send="+vm)
			c.site = struct{ hosts.FullHost }{} // panics if it is called
			f := put(t, c, tt.op, tt.body)
			require.NotNil(t, f)
			require.Equal(t, fault.Refused, f.Class)
			require.Contains(t, f.Text, "the agent's policy forbids it")
			require.Contains(t, f.Text, tt.says)
			require.Contains(t, strings.Join(*audit, "\n"), "refused")
			require.LessOrEqual(t, len(*audit), 4)
		})
	}
}
