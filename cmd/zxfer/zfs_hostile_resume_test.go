package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/zfstest"
)

// TestHostileResume sends attacks instead of the rest of an interrupted stream. The
// partially received state is kept, and the next honest send resumes it.
func TestHostileResume(t *testing.T) {
	lab(t)
	for _, r := range routes()[:2] {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.build()
			fill(t, p.source, "more", 8<<20)
			zfsCmd(t, "snapshot", p.source+"@d")
			whole := run(t, "zfs", "send", "-Lec", p.source+"@d")
			// A true one that is cut.
			lie(t, []byte(whole)[:len(whole)/2])
			o := p.send("d", "--retries", "0", "--latest-only")
			require.Equal(t, 4, o.code, o)
			token := strings.TrimSpace(zfsCmd(t, "get", "-Hp", "-o", "value", "receive_resume_token", p.target))
			require.NotEqual(t, "-", token, o)
			rest := zfstest.ParseStream(t, []byte(run(t, "zfs", "send", "-t", token)))
			for _, a := range p.chosen(p.forger().AgainstResume(rest, zfstest.ParseStream(t, []byte(whole)))) {
				t.Run(a.Name, func(t *testing.T) {
					lie(t, a.Stream)
					before := tree(t)
					o := p.send("d", "--latest-only")
					require.Empty(t, changes(before, tree(t)), "%s", o)
					require.NotContains(t, []int{0, 4}, o.code, "%s", o)
					require.Contains(t, o.stderr, p.target)
					require.Contains(t, o.stderr, a.Says)
				})
			}
			o = p.send("d", "--latest-only")
			require.Equal(t, 0, o.code, o)
			require.Equal(t, guids(t, p.source)["d"], guids(t, p.target)["d"])
			nothingLeft(t)
		})
	}
}

// TestHostileRaw sends attacks instead of a raw stream of an encrypted dataset, over the
// signed transport.
func TestHostileRaw(t *testing.T) {
	lab(t)
	for _, r := range routes()[:2] {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.source = r.from + "/liar/enc"
			p.build()
			o := p.send("a", "-n", "--json")
			require.Contains(t, o.stdout, `"signed"`, o)
			p.suffer("a", p.forger().AgainstRaw())
		})
	}
}

// Who may send into a dataset and fetch it back reads no other one that way.
func TestHostileReadsNothing(t *testing.T) {
	lab(t)
	p := newPrey(t, routes()[0])
	rsh, _ := restricted(t, "--allow", "receive="+p.target, "--allow", "send="+p.target, "--append-only")
	p.args = []string{"-e", rsh}
	p.build()
	lie(t, p.full.Changed(func(r *zfstest.Record) { r.SetClone(p.secretGUID) }).Bytes())
	require.NotEqual(t, 0, p.send("a").code)
	for _, what := range []string{p.target, p.secret} {
		o := zxfer(t, "send", "-e", rsh, "beta:"+what, alphaPool+"/liar/stolen")
		require.NotEqual(t, 0, o.code, o)
	}
	out := zfsCmd(t, "list", "-H", "-o", "name", "-r", alphaPool)
	require.NotContains(t, out, "stolen")
}

// TestHostileTokens sends resume tokens with a granted name and the GUIDs of another
// dataset. pkg/policy has more of them.
func TestHostileTokens(t *testing.T) {
	lab(t)
	p := newPrey(t, routes()[0])
	p.build()
	rsh, _ := restricted(t, "--allow", "send="+p.base+"/vault", "--append-only")
	granted := p.base + "/vault/web10"
	before := tree(t)
	for _, m := range [][]byte{
		request("estimate", `[{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+zfstest.Token(granted+"@s", p.secretGUID, 0)+`"}]`),
		task(streamEnd(`{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+zfstest.Token(granted+"@s", 1, p.secretGUID)+`"}`), accepted),
	} {
		answer, all := hostile(t, rsh, m)
		require.NotNil(t, answer, all)
		require.NotContains(t, answer, "body")
		require.Contains(t, answer["error"].(map[string]any)["text"], "the agent's policy forbids it")
	}
	require.Empty(t, changes(before, tree(t)))
}

// Honest use loses nothing to all this.
func TestHostileSparesHonestUse(t *testing.T) {
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
	all = all[:4] // the clone has no other snapshots to be equal in
	same()
	require.Equal(t, "off", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "setuid", target+"/child")))
	require.Equal(t, "-", strings.TrimSpace(zfsCmd(t, "get", "-H", "-o", "value", "org.example:note", target)), "a value of two lines is not set")
	// Back again, by plain tools and in plain.
	plainHost(t, "nc.openbsd")
	mustZxfer(t, plain("beta:"+target, source+"/back")...)
	require.Equal(t, guids(t, source), guids(t, source+"/back"))
	mustZxfer(t, "send", "--decrypt", "--wire", "plain", "--trusted-link", source+"/enc", "beta:"+target+"/plain")
	require.Equal(t, guids(t, source+"/enc"), guids(t, target+"/plain"))
}
