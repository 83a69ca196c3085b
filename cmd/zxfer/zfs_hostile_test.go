package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"zxfer/pkg/testenv"
	"zxfer/pkg/zfs/zfstest"
)

// A source lies: its zfs send answers with whatever the test made up. Every
// way to a target is tried with it, that of a restricted key too, whose holder
// runs the source. Nothing but what was planned may come of it.

// route is a way from a source that lies to a target.
type route struct {
	name     string
	args     []string
	from, to string // pools
	srcHost  string // "beta:" or ""
	dstHost  string
	key      bool // over a key that may receive the target and nothing else
	main     bool // one of the two routes that most attacks take
}

func routes() []route {
	push := func(name string, args ...string) route {
		return route{name: name, args: args, from: alphaPool, to: betaPool, dstHost: "beta:"}
	}
	pull := func(name string, args ...string) route {
		return route{name: name, args: args, from: betaPool, to: alphaPool, srcHost: "beta:"}
	}
	restricted, pulled := push("restricted key"), pull("pull")
	restricted.key, restricted.main, pulled.main = true, true, true
	return []route{
		restricted, pulled, push("push"),
		push("push plain", "--wire", "plain", "--trusted-link"),
		push("push streams", "--streams", "3", "--compress", "zstd"),
		push("push ssh", "--wire", "ssh"),
		pull("pull plain", "--wire", "plain", "--trusted-link"),
		pull("pull nc", "--wire", "nc", "--trusted-link"),
		{name: "local", from: alphaPool, to: alphaPool},
	}
}

// routesOf returns the routes that a test takes: all at the long level, otherwise the main
// routes and every second of the others. Tests 0 and 1 together take all.
func routesOf(test int) (chosen []route) {
	for i, r := range routes() {
		if testenv.Long() || r.main || i%2 == test {
			chosen = append(chosen, r)
		}
	}
	return chosen
}

// lie makes zfs send of both hosts answer with a stream.
func lie(t *testing.T, stream []byte) {
	t.Helper()
	dir, err := os.MkdirTemp(labDir, "lie")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.WriteFile(dir+"/stream", stream, 0o600))
	program := filepath.Join(labDir, "bin", "zfs")
	t.Cleanup(func() { _ = os.Remove(program) })
	require.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
case "$1 $2" in
"send -n"*) ;; # an estimate
"send "*) exec cat `+dir+`/stream ;;
esac
exec /usr/sbin/zfs "$@"
`), 0o755))
}

// prey is what the attacks are after: a target, and datasets beside it.
type prey struct {
	route
	t              *testing.T
	base           string // on the target's pool
	source, target string // the source also has web0, with the same beginning
	secret         string // must neither be written nor read
	evil           string // where nothing may be mounted
	full, incr     zfstest.Stream
	raw            zfstest.Stream // full, of another dataset
	other          zfstest.Stream // full, of another snapshot
	secretGUID     uint64
	args           []string
	incremental    bool
}

func newPrey(t *testing.T, r route) *prey {
	t.Helper()
	lab(t)
	p := &prey{route: r, t: t, base: r.to + "/prey", source: r.from + "/liar/web"}
	p.target, p.secret, p.evil = p.base+"/vault/web1", p.base+"/secret", t.TempDir()+"/ssh"
	t.Cleanup(func() {
		for _, d := range []string{p.base, r.from + "/liar"} {
			releaseAll(d)
			_ = exec.Command("zfs", "destroy", "-R", "-f", d).Run()
		}
	})
	zfsCmd(t, "create", "-p", p.source)
	zfsCmd(t, "create", r.from+"/liar/other")
	zfsCmd(t, "create", "-p", p.secret)
	require.NoError(t, os.WriteFile(mountpoint(t, p.secret)+"/plain", []byte("the secret"), 0o600))
	zfsCmd(t, "snapshot", p.secret+"@s")
	_, err := fmt.Sscan(zfsCmd(t, "get", "-Hp", "-o", "value", "guid", p.secret+"@s"), &p.secretGUID)
	require.NoError(t, err)
	for _, snap := range []string{"a", "b", "c"} {
		fill(t, p.source, "authorized_keys-"+snap, 100<<10)
		zfsCmd(t, "snapshot", p.source+"@"+snap)
	}
	zfsCmd(t, "snapshot", r.from+"/liar/other@a")
	key := t.TempDir() + "/key"
	require.NoError(t, os.WriteFile(key, []byte(strings.Repeat("k", 32)), 0o600))
	zfsCmd(t, "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", "keylocation=file://"+key, r.from+"/liar/enc")
	zfsCmd(t, "snapshot", r.from+"/liar/enc@a")
	send := func(args ...string) zfstest.Stream {
		return zfstest.ParseStream(t, []byte(run(t, append([]string{"zfs", "send", "-Lec"}, args...)...)))
	}
	p.full, p.incr = send(p.source+"@a"), send("-I", "@a", p.source+"@c")
	p.other, p.raw = send(r.from+"/liar/other@a"), send("-w", r.from+"/liar/enc@a")
	if r.key {
		rsh, _ := restricted(t, "--allow", "receive="+p.target, "--append-only")
		p.args = append(p.args, "-e", rsh)
	}
	p.args = append(p.args, r.args...)
	return p
}

// forger returns the forger of attacks on this target.
func (p *prey) forger() zfstest.Forger {
	return zfstest.Forger{Full: p.full, Increment: p.incr, Other: p.other, Raw: p.raw,
		Foreign: p.secret, ForeignGUID: p.secretGUID, Mountpoint: p.evil}
}

// build makes the target anew.
func (p *prey) build() {
	p.t.Helper()
	_ = os.Remove(filepath.Join(labDir, "bin", "zfs"))
	vault := p.base + "/vault"
	releaseAll(vault)
	_ = exec.Command("zfs", "destroy", "-R", "-f", vault).Run() // the first time there is none
	zfsCmd(p.t, "create", "-p", vault+"/web10")
	zfsCmd(p.t, "snapshot", vault+"/web10@s")
	if p.incremental {
		o := p.send("a")
		require.Equal(p.t, 0, o.code, o)
	}
}

// send sends the source up to a snapshot to the target.
func (p *prey) send(snap string, args ...string) ending {
	p.t.Helper()
	argv := append([]string{"send"}, p.args...)
	return zxfer(p.t, append(append(argv, args...), p.srcHost+p.source+"@"+snap, p.dstHost+p.target)...)
}

// pkg/zfs judges every attack with zfs.Gate. The long level also sends all of them through
// zxfer. Below it, the restricted key takes the attacks that the gate passes, a main route
// takes one of sampled of the others, and every route takes the first of those for every
// route.
const (
	sampled      = 12
	onEveryRoute = 1
)

// chosen returns the attacks of this route that are sent through zxfer.
func (p *prey) chosen(attacks []zfstest.Attack) (chosen []zfstest.Attack) {
	everywhere := 0
	for i, a := range attacks {
		if a.Everywhere {
			everywhere++
		}
		switch {
		case testenv.Long() && (p.main || a.Everywhere),
			a.Everywhere && everywhere <= onEveryRoute,
			p.key && a.Says == "",
			p.main && i%sampled == len(p.route.name)%sampled:
			chosen = append(chosen, a)
		}
	}
	return chosen
}

// suffer sends the attacks instead of the planned stream, and then the planned stream to
// show that no attack had an effect.
func (p *prey) suffer(snap string, attacks []zfstest.Attack) {
	p.build()
	for _, a := range p.chosen(attacks) {
		p.t.Run(a.Name, func(t *testing.T) {
			lie(t, a.Stream)
			spared := []string(nil)
			if a.Begins {
				spared = []string{p.target}
			}
			before := tree(t, spared...)
			t.Cleanup(func() {
				if t.Failed() || a.Begins {
					p.build()
				}
			})
			o := p.send(snap)
			_ = exec.Command("zfs", "mount", "-a").Run() // what cannot be mounted is not ours
			require.NoFileExists(t, p.evil+"/authorized_keys-a")
			require.Empty(t, changes(before, tree(t, spared...)), "%s", o)
			require.NotEqual(t, 0, o.code, "%s", o)
			if !a.Cut {
				require.NotEqual(t, 4, o.code, "another try does not cure it: %s", o)
			}
			require.Contains(t, o.stderr, p.target)
			require.Contains(t, o.stderr, a.Says)
			if a.Begins {
				require.Subset(t, guids(t, p.source), guids(t, p.target))
			}
		})
	}
	p.build()
	require.Equal(p.t, 0, p.send(snap).code, "honest use")
	if snap == "c" {
		require.Equal(p.t, guids(p.t, p.source), guids(p.t, p.target))
	}
	nothingLeft(p.t)
}

// tree is every dataset, version, property, hold and resume token of both
// pools, but for what is spared and for figures of space, which change by
// themselves.
func tree(t *testing.T, spared ...string) []string {
	t.Helper()
	run(t, "zpool", "sync")
	var lines []string
	for _, pool := range []string{alphaPool, betaPool} {
		for l := range strings.Lines(zfsCmd(t, "get", "-Hp", "-r", "-t", "all", "all", pool)) {
			name, rest, _ := strings.Cut(l, "\t")
			property, _, _ := strings.Cut(rest, "\t")
			if slices.Contains([]string{"used", "available", "referenced", "written", "compressratio", "refcompressratio",
				"logicalused", "logicalreferenced", "mounted"}, property) || strings.HasPrefix(property, "usedby") {
				continue
			}
			if slices.ContainsFunc(spared, func(s string) bool {
				return name == s || strings.HasPrefix(name, s+"@") || strings.HasPrefix(name, s+"/")
			}) {
				continue
			}
			lines = append(lines, strings.TrimSpace(l))
		}
	}
	return lines
}

// changes are the first lines that are not in both.
func changes(before, after []string) []string {
	var out []string
	for sign, in := range map[string][2][]string{"-": {before, after}, "+": {after, before}} {
		other := map[string]bool{}
		for _, l := range in[1] {
			other[l] = true
		}
		for _, l := range in[0] {
			if !other[l] && len(out) < 20 {
				out = append(out, sign+l)
			}
		}
	}
	return out
}

// TestHostileFull sends attacks instead of a full stream of one snapshot.
func TestHostileFull(t *testing.T) {
	lab(t)
	for _, r := range routesOf(0) {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.suffer("a", p.forger().AgainstFull())
		})
	}
}

// TestHostileRecords sends full streams of the planned snapshot with records that zfs send does
// not make. The gate must refuse each record before the kernel reads it, because some of them
// panic the kernel.
func TestHostileRecords(t *testing.T) {
	lab(t)
	for _, r := range routes() {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.suffer("a", p.forger().RecordsAgainstFull())
		})
	}
}

// TestHostileIncrement sends attacks instead of a package of two increments.
func TestHostileIncrement(t *testing.T) {
	lab(t)
	for _, r := range routesOf(1) {
		t.Run(r.name, func(t *testing.T) {
			p := newPrey(t, r)
			p.incremental = true
			p.suffer("c", p.forger().AgainstIncrement())
		})
	}
}
