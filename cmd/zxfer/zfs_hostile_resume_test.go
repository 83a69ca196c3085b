package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/zfstest"
)

// attackResume sends attacks instead of the rest of an interrupted stream. The partially
// received state is kept, and the next honest send resumes it.
func (p *attackTarget) attackResume() {
	t := p.t
	t.Helper()
	p.t.Run("resume", func(t *testing.T) {
		fakeSend(t, p.later[:len(p.later)/2]) // an honest stream that is truncated
		o := p.send("d", "--retries", "0", "--latest-only")
		require.Equal(t, 4, o.code, o)
	})
	token := strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", "receive_resume_token", p.target))
	require.NotEqual(t, "-", token)
	rest := zfstest.ParseStream(t, []byte(run(t, "zfs", "send", "-t", token)))
	p.cachedTree = nil
	for _, a := range p.selectAttacks(p.forger().AgainstResume(rest, zfstest.ParseStream(t, p.later))) {
		t.Run("resume: "+a.Name, func(t *testing.T) {
			fakeSend(t, a.Stream)
			before := p.tree(t)
			o := p.send("d", "--latest-only")
			p.cachedTree = nil
			require.Empty(t, changes(before, p.tree(t)), "%s", o)
			require.NotContains(t, []int{0, 4}, o.code, "%s", o)
			require.Contains(t, o.stderr, p.target)
			require.Contains(t, o.stderr, a.Says)
		})
	}
	o := p.send("d", "--latest-only")
	p.cachedTree = nil
	require.Equal(t, 0, o.code, o)
	require.Equal(t, guids(t, p.source)["d"], guids(t, p.target)["d"])
}

// attackRaw sends attacks instead of a raw stream of an encrypted dataset, over the signed
// transport.
func (p *attackTarget) attackRaw() {
	encrypted := *p
	encrypted.source, encrypted.args = p.enc, append(slices.Clone(p.args), "--wire", "signed")
	o := encrypted.send("a", "-n", "--json")
	require.Contains(p.t, o.stdout, `"raw": true`, o)
	encrypted.attack("raw", "a", p.selectAttacks(p.forger().AgainstRaw()), encrypted.remove)
}

// TestHostileClientCannotRead uses a key that may send to a dataset and fetch it back. The key
// must not permit reading other datasets.
func TestHostileClientCannotRead(t *testing.T) {
	lab(t)
	p := newAttackTarget(t, routes()[0]).forRoute(t, routes()[0])
	rsh, _ := restrictedKey(t, "--allow", "receive="+p.target, "--allow", "send="+p.target, "--append-only")
	p.args = []string{"-e", rsh}
	fakeSend(t, p.full.Changed(func(r *zfstest.Record) { r.SetClone(p.secretGUID) }).Bytes())
	require.NotEqual(t, 0, p.send("a").code)
	for _, dataset := range []string{p.target, p.secret} {
		o := zxfer(t, "send", "-e", rsh, "beta:"+dataset, alphaPool+"/attacker/stolen")
		require.NotEqual(t, 0, o.code, o)
	}
	out := zfsCmd(t, "list", "-H", "-o", "name", "-r", alphaPool)
	require.NotContains(t, out, "stolen")
}

// TestHostileTokens sends resume tokens with a granted name and the GUIDs of another
// dataset. pkg/agent/authz tests more of them.
func TestHostileTokens(t *testing.T) {
	lab(t)
	p := newAttackTarget(t, routes()[0]).forRoute(t, routes()[0])
	rsh, _ := restrictedKey(t, "--allow", "send="+p.base+"/vault", "--append-only")
	granted := p.base + "/vault/web10"
	before := tree(t)
	for _, m := range [][]byte{
		request("estimate", `[{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+zfstest.Token(granted+"@s", p.secretGUID, 0)+`"}]`),
		transferRequest(streamEnd(`{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+zfstest.Token(granted+"@s", 1, p.secretGUID)+`"}`), acceptEnd),
	} {
		answer, all := sendHostile(t, rsh, m)
		require.NotNil(t, answer, all)
		require.NotContains(t, answer, "body")
		require.Contains(t, answer["error"].(map[string]any)["text"], "the agent's policy forbids it")
	}
	require.Empty(t, changes(before, tree(t)))
}

// TestHostileChecksAcceptHonestTransfers checks that the defences against hostile streams do not affect
// honest transfers.
func TestHostileChecksAcceptHonestTransfers(t *testing.T) {
	lab(t)
	source, target := dataset(t)
	zfsCmd(t, "create", source)
	zfsCmd(t, "create", source+"/child")
	zfsCmd(t, "create", "-V", "8m", source+"/child/vol")
	key := t.TempDir() + "/key"
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, source+"/enc")
	snap := func(names ...string) {
		for _, n := range names {
			fill(t, source, "f-"+n, 200<<10)
			fill(t, source+"/enc", "f-"+n, 200<<10)
			zfsCmd(t, "snapshot", "-r", "-o", "org.example:note=tab\there", source+"@"+n)
			zfsCmd(t, "hold", "-r", "mine", source+"@"+n)
		}
	}
	zfsCmd(t, "set", "org.example:note=two\nlines", source)
	zfsCmd(t, "set", "setuid=off", source+"/child")
	snap("a")
	zfsCmd(t, "clone", source+"/child@a", source+"/clone")
	fill(t, source+"/clone", "own", 100<<10)
	zfsCmd(t, "snapshot", source+"/clone@a2")
	all := []string{"", "/child", "/child/vol", "/enc", "/clone"}
	same := func() {
		t.Helper()
		for _, d := range all {
			require.Equal(t, guids(t, source+d), guids(t, target+d), d)
		}
	}
	mustZxfer(t, "send", "-R", "-p", source, "beta:"+target)
	require.Equal(t, target+"/child@a", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "origin", target+"/clone")))
	snap("b", "c", "d")
	mustZxfer(t, "send", "-R", "-p", "--verify", source, "beta:"+target)
	all = all[:4] // the clone is not compared
	same()
	require.Equal(t, "off", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "setuid", target+"/child")))
	require.Equal(t, "-", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "org.example:note", target)), "a value with two lines was set")
	// Send the copy back with plain tools only, and send another one unencrypted.
	installNC(t, "nc.openbsd")
	mustZxfer(t, ncSend("beta:"+target, source+"/back")...)
	require.Equal(t, guids(t, source), guids(t, source+"/back"))
	mustZxfer(t, "send", "--decrypt", "--wire", "plain", "--trusted-link", source+"/enc", "beta:"+target+"/plain")
	require.Equal(t, guids(t, source+"/enc"), guids(t, target+"/plain"))
}
