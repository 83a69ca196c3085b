package agent

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/fault"
	"zxfer/pkg/hosts"
)

// TestRestrictedKeyIsRefused sends requests that exceed an append-only key with one receive and one
// send grant, and expects refusals. cmd/zxfer sends one of each kind over ssh.
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
		{"destroy a granted snapshot", hosts.OpDestroy.Name(), `["` + b + `@a"]`, "append-only"},
		{"destroy another dataset's snapshot", hosts.OpDestroy.Name(), `["` + secret + `@a"]`, "append-only"},
		{"destroy a dataset", hosts.OpDestroy.Name(), `["` + b + `"]`, "a snapshot or bookmark"},
		{"release a hold of the administrator", hosts.OpRelease.Name(), `{"tag":"legal","snapshots":["` + b + `@a"]}`, "append-only"},
		{"release a hold elsewhere", hosts.OpRelease.Name(), `{"tag":"zxfer:x:y","snapshots":["` + secret + `@a"]}`, "permit"},
		{"hold elsewhere", hosts.OpHold.Name(), `{"tag":"t","snapshots":["` + secret + `@a"]}`, "permit"},
		{"snapshot the target", hosts.OpSnapshot.Name(), `["` + b + `@evil"]`, "permit"},
		{"snapshot the pool", hosts.OpSnapshot.Name(), `["vault@evil"]`, "permit"},
		{"bookmark elsewhere", hosts.OpBookmark.Name(), `{"` + secret + `#b":"` + secret + `@a"}`, "permit"},
		{"bookmark across datasets", hosts.OpBookmark.Name(), `{"` + vm + `#b":"` + secret + `@a"}`, "permit"},
		{"list the pool", hosts.OpList.Name(), `{"dataset":"vault","recursive":true}`, "permit"},
		{"list a name with a granted prefix", hosts.OpList.Name(), `{"dataset":"` + b + `2"}`, "permit"},
		{"list a path with ..", hosts.OpList.Name(), `{"dataset":"` + b + `/../secret"}`, "permit"},
		{"properties of another dataset", hosts.OpProperties.Name(), `{"names":["` + secret + `"],"properties":["used"]}`, "permit"},
		{"all properties of the pool", hosts.OpProperties.Name(), `{"names":["vault"],"properties":null}`, "permit"},
		{"holds elsewhere", hosts.OpHolds.Name(), `["` + secret + `@a"]`, "permit"},
		{"dataset of a path", hosts.OpDatasetOf.Name(), `"/"`, "may send"},
		{"send another dataset", hosts.OpEstimate.Name(), `[{"dataset":"` + secret + `","to":"a","flags":{}}]`, "permit"},
		{"send a receive grant", hosts.OpEstimate.Name(), `[{"dataset":"` + b + `","to":"a","flags":{}}]`, "permit"},
		{"send a name with a granted prefix", hosts.OpEstimate.Name(), `[{"dataset":"` + vm + `2","to":"a","flags":{}}]`, "permit"},
		{"send from an incremental source elsewhere", hosts.OpEstimate.Name(), `[{"dataset":"` + vm + `","from":"` + secret + `@a","to":"a","flags":{}}]`, "permit"},
		{"send with an option in a name", hosts.OpEstimate.Name(), `[{"dataset":"` + vm + `","to":"a -R","from":"@-R/../x","flags":{}}]`, "forbids"},
		{"forged resume token", hosts.OpEstimate.Name(), `[{"dataset":"` + vm + `","to":"a","flags":{},"token":"1-0-0-00"}]`, "token"},
		{"digest of another dataset", hosts.OpDigest.Name(), `{"dataset":"` + secret + `","to":"a","flags":{}}`, "permit"},
		{"receive elsewhere", hosts.OpTransfer.Name(), receive(`"` + secret + `"`), "receiving into"},
		{"receive into the pool", hosts.OpTransfer.Name(), receive(`"vault"`), "receiving into"},
		{"receive with rollback", hosts.OpTransfer.Name(), receive(`"` + b + `/x","rollback":true`), "with rollback"},
		{"receive with a mountpoint", hosts.OpTransfer.Name(), receive(`"` + b + `/x","set":{"mountpoint":"/etc"}`), "mountpoint"},
		{"receive and share", hosts.OpTransfer.Name(), receive(`"` + b + `/x","set":{"sharenfs":"on"}`), "sharenfs"},
		{"receive a copy that mounts", hosts.OpTransfer.Name(), receive(`"` + b + `/x","set":{"canmount":"on"}`), "canmount"},
		{"receive a writable copy", hosts.OpTransfer.Name(), receive(`"` + b + `/x","set":{"readonly":"off"}`), "readonly"},
		{"receive a clone of another dataset", hosts.OpTransfer.Name(), receive(`"` + b + `/x","origin":"` + secret + `@a"`), "permit"},
		{"receive from a local send", hosts.OpTransfer.Name(), task(stream(`{"dataset":"`+secret+`","to":"a","flags":{}}`), stream(`{"target":"`+b+`/x"}`)), "permit"},
		{"create parents elsewhere", hosts.OpCreateParents.Name(), `"vault/new/x"`, "receiving into"},
		{"discard elsewhere", hosts.OpDiscardPartial.Name(), `"` + secret + `"`, "receiving into"},
		{"connect to another host", hosts.OpTransfer.Name(), task(dial("192.0.2.9:22"), stream(`{"target":"`+b+`/x"}`)), "connect"},
		{"listen on all addresses", hosts.OpOffer.Name(), `{"mode":"plain","streams":1,"address":"0.0.0.0","deadline":1}`, "one address"},
		{"listen for years", hosts.OpOffer.Name(), `{"mode":"plain","streams":1,"address":"192.0.2.2","deadline":900000000000000000}`, "deadline"},
		{"wait for years", hosts.OpTransfer.Name(), task(accepted, `{"stream":{"spec":{"target":"`+b+`/x"},"options":{"stall":900000000000000000}}}`), "out of bounds"},
		{"unknown operation", "shell", `"id"`, "no rule"},
		{"unknown field", hosts.OpList.Name(), `{"dataset":"` + b + `","x":1}`, "malformed"},
		{"inherit the key of another dataset", hosts.OpInheritKey.Name(), `"` + secret + `"`, "permit"},
		{"sync another pool", hosts.OpSync.Name(), `"` + secret + `"`, "permit"},
		{"roll an original back", hosts.OpRollback.Name(), `{"dataset":"` + vm + `","to":{"name":"a","guid":"1"}}`, "a restricted key cannot roll back the original"},
		{"stop inheriting the key of another dataset", hosts.OpMakeEncryptionRoot.Name(), `"` + secret + `"`, "receiving into"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, _, audit := restrictedSession(t, true, "receive="+b, "send="+vm)
			c.host = struct{ hosts.Host }{} // panics if it is called
			f := callSession(t, c, tt.op, tt.body)
			require.NotNil(t, f)
			require.Equal(t, fault.Refused, f.Class)
			require.Contains(t, f.Text, "the agent's policy forbids it")
			require.Contains(t, f.Text, tt.says)
			require.Contains(t, strings.Join(*audit, "\n"), "refused")
			require.LessOrEqual(t, len(*audit), 4)
		})
	}
}
