package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/zfs/zfstest"
)

// Where the rest of an interrupted stream was planned. What had arrived of it
// stays, and honest use goes on with it.
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
			guid := rest.Begin(0).ToGUID()
			for _, a := range []attack{
				{name: "of another snapshot", stream: fresh(rest, p.source+"@d", 4242).Bytes()},
				{name: "under another name", stream: named(rest, p.source+"@z").Bytes()},
				{name: "of a clone", stream: bent(rest, begin(func(r *zfstest.Record) { r.SetClone(p.secretGUID) })).Bytes()},
				{name: "from the beginning", stream: []byte(whole)},
				{name: "another stream from the beginning", stream: fresh(p.full, p.source+"@d", guid).Bytes()},
				{name: "in a package", stream: zfstest.Package(p.source+"@d", nil, 0, rest).Bytes()},
				{name: "raw", stream: bent(rest, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRaw) })).Bytes()},
			} {
				t.Run(a.name, func(t *testing.T) {
					lie(t, a.stream)
					before := tree(t)
					o := p.send("d", "--latest-only")
					require.Empty(t, changes(before, tree(t)), "%s", o)
					require.NotContains(t, []int{0, 4}, o.code, "%s", o)
					require.Contains(t, o.stderr, p.target)
					require.Contains(t, o.stderr, "planned")
				})
			}
			o = p.send("d", "--latest-only")
			require.Equal(t, 0, o.code, o)
			require.Equal(t, guids(t, p.source)["d"], guids(t, p.target)["d"])
			nothingLeft(t, 20*time.Second)
		})
	}
}

// Where a raw stream of an encrypted dataset was planned, on the wire that
// signs.
func TestHostileRaw(t *testing.T) {
	lab(t)
	for _, r := range routes()[:2] {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.source = r.from + "/liar/enc"
			guid := p.raw.Begin(0).ToGUID()
			plain := fresh(p.full, p.source+"@a", guid)
			all := []attack{
				{name: "in plain", everywhere: true, says: "raw", stream: plain.Bytes()},
				{name: "in plain, said to be raw", everywhere: true, says: p.target, stream: bent(plain, begin(func(r *zfstest.Record) { r.AddFeatures(zfstest.FeatureRaw) })).Bytes()},
				{name: "of another GUID", everywhere: true, says: "planned", stream: fresh(p.raw, p.source+"@a", 4242).Bytes()},
				{name: "in a package with a key's location", everywhere: true, says: "planned", stream: zfstest.Package(p.source+"@a",
					described(false, zfstest.List{{Name: "raw"}}, set(p.source, "a", guid, 0, zfstest.Pair{Name: "is_encroot"},
						props(zfstest.Pair{Name: "keylocation", Value: "https://192.0.2.1/key"}))), 0, p.raw).Bytes()},
			}
			p.build()
			o := p.send("a", "-n", "--json")
			require.Contains(t, o.stdout, `"signed"`, o)
			p.suffer("a", all)
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
	lie(t, bent(p.full, begin(func(r *zfstest.Record) { r.SetClone(p.secretGUID) })).Bytes())
	require.NotEqual(t, 0, p.send("a").code)
	for _, what := range []string{p.target, p.secret} {
		o := zxfer(t, "send", "-e", rsh, "beta:"+what, alphaPool+"/liar/stolen")
		require.NotEqual(t, 0, o.code, o)
	}
	out := zfsCmd(t, "list", "-H", "-o", "name", "-r", alphaPool)
	require.NotContains(t, out, "stolen")
}

// A token has no key, so anybody can make one up, with the name of what was
// granted and the GUIDs of what was not.
func TestHostileTokens(t *testing.T) {
	lab(t)
	p := newPrey(t, routes()[0])
	p.build()
	rsh, _ := restricted(t, "--allow", "send="+p.base+"/vault", "--append-only")
	granted := p.base + "/vault/web10"
	guid := guids(t, granted)["s"]
	require.NotEmpty(t, guid)
	before := tree(t)
	for _, tt := range []struct{ name, token string }{
		{"another's snapshot", zfstest.Token(granted+"@s", p.secretGUID, 0)},
		{"another's base", zfstest.Token(granted+"@s", 1, p.secretGUID)},
		{"another's name", zfstest.Token(p.secret+"@s", p.secretGUID, 0)},
		{"what is above", zfstest.Token(betaPool+"@s", p.secretGUID, 0)},
		{"a saved stream", zfstest.Token(granted+"@s", p.secretGUID, 0, "savedok")},
		{"no name", zfstest.Token("", p.secretGUID, 0)},
		{"an escape", zfstest.Token(granted+"/../../secret@s", p.secretGUID, 0)},
	} {
		for _, m := range [][]byte{
			request("estimate", `[{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+tt.token+`"}]`),
			request("digest", `{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+tt.token+`"}`),
			task(streamEnd(`{"dataset":"`+granted+`","to":"s","flags":{},"token":"`+tt.token+`"}`), accepted),
		} {
			answer, all := hostile(t, rsh, m)
			require.NotNil(t, answer, "%s: %s", tt.name, all)
			require.NotContains(t, answer, "body")
			require.Contains(t, answer["error"].(map[string]any)["text"], "the agent's policy forbids it", tt.name)
		}
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
	require.Equal(t, "two\nlines", strings.TrimSuffix(zfsCmd(t, "get", "-H", "-o", "value", "org.example:note", target), "\n"))
	// Back again, by plain tools and in plain.
	plainHost(t, "nc.openbsd")
	mustZxfer(t, plain("beta:"+target, source+"/back")...)
	require.Equal(t, guids(t, source), guids(t, source+"/back"))
	mustZxfer(t, "send", "--decrypt", "--wire", "plain", "--trusted-link", source+"/enc", "beta:"+target+"/plain")
	require.Equal(t, guids(t, source+"/enc"), guids(t, target+"/plain"))
}
